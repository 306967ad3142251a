"""Tilings that `bitnet tune` measures on each kind of GPU."""

from __future__ import annotations

from contextlib import suppress

import pytest
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.cases.tuned import products, tuned_cases
from bitnet_rocm import compile
from bitnet_rocm.describe import OPTIONAL
from bitnet_rocm.tuning import WAVE, candidate_tunings


@pytest.mark.parametrize(("architecture", "waves"), [("gfx90a", {0}), ("gfx1030", {0, 64}), ("gfx1100", {0, 64})])
def test_every_product_has_two_to_six_tilings(architecture: str, waves: set[int]) -> None:
    counts: dict[str, int] = {}
    widths: set[int] = set()
    for name in products():
        for case in tuned_cases(name) if CATALOGUE[name].base or name in OPTIONAL else ():
            launch = case.launch()
            with suppress(UnsupportedError):
                offered = candidate_tunings(case.spec, launch.constants, launch.params, 60, architecture)
                assert len({tuning.key for tuning in offered}) == len(offered) <= 6
                counts[name] = max(counts.get(name, 0), len(offered))
                widths |= {tuning.private.get(WAVE, 0) for tuning in offered}
    assert {name for name, count in counts.items() if count > 1} == {
        *("matmul_ternary", "matmul_ternary_block", "matmul_dense", "norm_matmul", "norm_matmul_glu")
    }
    assert widths == waves


def test_the_width_of_waves_is_an_option_of_the_compiler() -> None:
    assert b"-mwavefrontsize64" in compile.options("gfx1100", 64)
    assert not [option for option in compile.options("gfx1100") if b"wavefront" in option]
