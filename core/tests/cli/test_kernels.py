"""`bitnet kernels`, and the pages that are made from the catalogue and from sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.describe import grid_formula
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid

DOCS = Path(__file__).parents[3] / "docs"


def test_every_kernel_is_listed(bitnet) -> None:
    out = bitnet("kernels").out
    assert all(f"| {name} " in out for name in CATALOGUE)


def test_a_contract_is_complete(bitnet) -> None:
    out = bitnet("kernels", "matmul_dense").out
    spec = CATALOGUE["matmul_dense"]
    words = [spec.meaning, *(b.name for b in spec.bindings), *(p.meaning for p in spec.params), *spec.constants]
    assert [word for word in (*words, *spec.tuning, "ceil_div(outs, TILE_N)") if word not in out] == []


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=lambda spec: spec.name)
def test_the_grid_has_a_formula_of_known_names(spec: KernelSpec) -> None:
    formula = grid_formula(spec)
    names = {param.name for param in spec.params} | {*spec.tuning, *spec.constants}
    values = dict.fromkeys(names, 3) | {"ceil_div": lambda a, b: -(-a // b)}
    assert eval(formula, values) == spec.grid(dict.fromkeys(names, 3), dict.fromkeys(names, 3))


def test_a_longer_grid_function_is_shown_whole() -> None:
    def grid(params: Params, tuning: Constants) -> Grid:
        """Workgroups."""
        tiles = int(params["outs"]) // tuning["TILE_N"]
        return tiles, 1, 1

    spec = KernelSpec("example", "nothing", (), (), grid)
    assert grid_formula(spec) == "tiles = outs // TILE_N; (tiles, 1, 1)"


def test_an_unknown_kernel_is_a_usage_error(bitnet) -> None:
    result = bitnet("kernels", "softmax")
    assert result.code == 2
    assert "there is no kernel 'softmax'. Kernels: embed_rows" in result.err


def test_generated_pages_are_up_to_date() -> None:
    """`python docs/pages.py` makes them again."""
    done = subprocess.run([sys.executable, DOCS / "pages.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
