"""Every kernel that a device claims does what the catalogue says."""

from __future__ import annotations

from bitnet_core.testing.bench import Bench
from bitnet_core.testing.cases.case import Case, expected
from bitnet_core.testing.compare import check_outputs


class KernelRules:
    """Parametrised over the cases of all base kernels and of `DeviceInfo.kernels`."""

    def test_kernel(self, bench: Bench, case: Case) -> None:
        """Outputs as the numpy meaning has them, nothing else written, inputs unchanged."""
        launch, actual = bench.run(case)
        check_outputs(case, launch, expected(case.spec, launch), actual)
