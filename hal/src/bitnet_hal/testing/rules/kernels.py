"""Rules about kernels: each one that a device offers must match the catalogue."""

from __future__ import annotations

from typing import cast

import pytest

from bitnet_hal.errors import GpuError, UnsupportedError
from bitnet_hal.features import TunableDevice
from bitnet_hal.testing.cases.case import Case, expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.cases.tuned import tuned_cases
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.compiles import failing_kernels
from bitnet_hal.testing.workbench import Bench
from bitnet_hal.tuning.measured import tiling_key

MOST_TUNINGS = 16
"""Maximum tunings of a product: `bitnet tune` compiles and measures each of them."""


class KernelRules:
    """Rules that run for all base kernels and those of `DeviceInfo.kernels`, and for the cases of each."""

    def test_every_kernel_compiles(self, bench: Bench) -> None:
        """Every kernel must compile; the message names those that do not, then shows the compiler's log of each."""
        failed = failing_kernels(bench.device)
        logs = "".join(f"\n\n{name}: {error}\n{error.log}" for name, error in failed.items())
        assert not failed, f"{len(failed)} kernels do not compile: {', '.join(failed)}{logs}"

    def test_kernel_is_offered(self, bench: Bench, kernel: str) -> None:
        """A kernel must compile with all its constants, for every size of launch.

        An optional kernel may reject sizes with UnsupportedError, but not all; its cases of these sizes are then
        skipped.
        """
        served = 0
        refused = ""
        for case in cases_of(kernel):
            launch = case.launch()
            try:
                bench.launcher.compiled(case.spec, launch.params, launch.constants)
                served += 1
            except GpuError as exc:
                refused = f"{case.id}: {kernel} is not offered: {exc}\n{exc.log}"
                if case.spec.base or not isinstance(exc, UnsupportedError):
                    raise AssertionError(refused) from exc
        assert served, refused

    def test_kernel(self, bench: Bench, case: Case) -> None:
        """Outputs must match the numpy reference; nothing else may be written."""
        launch, actual = bench.run(case)
        check_outputs(case, launch, expected(case.spec, launch), actual)

    def test_every_tuning_on_offer_is_right(self, bench: Bench, product: str) -> None:
        """A device with "tunings" must list its own choice first, each tuning once and 16 at most, and the results of
        all must match the reference."""
        if "tunings" not in bench.device.info.features:
            pytest.skip('the device does not claim "tunings"')
        for case in tuned_cases(product):
            launch = case.launch()
            try:
                usual = bench.device.tuning(case.spec, launch.constants, launch.params)
            except UnsupportedError:
                continue
            device = cast(TunableDevice, bench.device)
            offered = device.tunings(case.spec, launch.constants, launch.params)
            assert offered[0].key == usual.key
            assert len({tuning.key for tuning in offered}) == len(offered) <= MOST_TUNINGS
            for tuning in offered[1:]:
                bench.launcher.tilings = {tiling_key(product, launch.constants, launch.params): tuning}
                prepared = bench.prepare(case.spec, launch)
                prepared.run(bench.device)
                check_outputs(case, launch, expected(case.spec, launch), bench.results(case, launch, prepared))
                bench.tidy()
