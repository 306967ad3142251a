"""Every kernel that a device claims does what the catalogue says."""

from __future__ import annotations

from bitnet_core.errors import UnsupportedError
from bitnet_core.testing.bench import Bench
from bitnet_core.testing.cases.case import Case, expected
from bitnet_core.testing.cases.registry import cases_of
from bitnet_core.testing.compare import check_outputs


class KernelRules:
    """Parametrised over all base kernels and those of `DeviceInfo.kernels`, and over the cases of each."""

    def test_kernel_is_offered(self, bench: Bench, kernel: str) -> None:
        """It compiles with all its constants, for every size of launch. Where this fails, its cases skip."""
        for case in cases_of(kernel):
            launch = case.launch()
            try:
                bench.compiled(case.spec, launch.constants, launch.params)
            except UnsupportedError as exc:
                raise AssertionError(f"{case.id}: {kernel} is not offered: {exc}") from exc

    def test_kernel(self, bench: Bench, case: Case) -> None:
        """Outputs as the numpy meaning has them, nothing else written, inputs unchanged."""
        launch, actual = bench.run(case)
        check_outputs(case, launch, expected(case.spec, launch), actual)
