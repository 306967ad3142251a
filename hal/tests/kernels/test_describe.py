"""The formula of a kernel's grid, as its contract shows it."""

from __future__ import annotations

import pytest
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.describe import grid_formula
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.rounding import ceil_div


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=lambda spec: spec.name)
def test_the_grid_has_a_formula_of_known_names(spec: KernelSpec) -> None:
    formula = grid_formula(spec)
    names = {param.name for param in spec.params} | {*spec.tuning, *spec.constants}
    values = dict.fromkeys(names, 3) | {"ceil_div": ceil_div}
    assert eval(formula, values) == spec.grid(dict.fromkeys(names, 3), dict.fromkeys(names, 3))


def test_a_longer_grid_function_is_shown_whole() -> None:
    def grid(params: Params, tuning: Constants) -> Grid:
        """Workgroups."""
        tiles = int(params["outs"]) // tuning["TILE_N"]
        return tiles, 1, 1

    spec = KernelSpec("example", "nothing", (), (), grid)
    assert grid_formula(spec) == "tiles = outs // TILE_N; (tiles, 1, 1)"
