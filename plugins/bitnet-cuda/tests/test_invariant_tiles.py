"""The tunings of deterministic steps: one order of sums for 1 to 64 rows, in blocks that fit the GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from bitnet_cuda import invariant_tiles, tuning
from bitnet_cuda.batch_tiles import block_group_tile
from bitnet_cuda.kernels.portable.tiles import MEETINGS
from bitnet_cuda.limits import BATCH_ROWS, MOST_SHARED
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.plugin import FEW_ROWS, Tuning
from bitnet_hal.rounding import ceil_div

PRODUCTS = ((6144, 4096), (4096, 4096), (4096, 12288), (151936, 4096), (10240, 5120), (5120, 6144), (6144, 5120))
"""Outputs and columns of Bonsai 8B's and 27B's matrices."""
HEADS = ((1, 1), (3, 1), (20, 5), (32, 8), (24, 4), (64, 8), (40, 40))
"""Query heads and key/value heads."""
GATES = ((12288, 4096), (17408, 5120))
"""Outputs and columns of gate and up."""


def chosen(kernel: str, constants: dict[str, int], rows: int, **params: int) -> Tuning:
    """Return the tuning of a deterministic launch on Hopper."""
    spec = CATALOGUE[kernel]
    return invariant_tiles.select_tuning(spec, constants, {"rows": rows, **params}, tensor_cores=True, wgmma=True)


@pytest.mark.parametrize("rows", [1, 8, 9, 17, 24, 33, 40, 64])
def test_products_of_more_rows_share_columns_as_those_of_few(rows: int) -> None:
    launches: list[tuple[str, dict[str, int], int, int, int]] = []
    for outs, width in PRODUCTS:
        launches.append(("matmul_ternary_block", {"ADD": 1, "BLOCK": 128, "ABLOCK": 32}, outs, width, 1))
    for outs, width in GATES:
        launches.append(("matmul_ternary_glu", {"ACT": 1, "BLOCK": 128, "ABLOCK": 128}, outs, width, 2))
    for kernel, constants, outs, width, parts in launches:
        shape = {"outs": outs, "width": width, "y_stride": outs, "y_first": 0}
        few = chosen(kernel, constants, FEW_ROWS, **shape)
        found = chosen(kernel, constants, rows, **shape)
        if rows <= FEW_ROWS:
            assert found == few
            continue
        assert found.variant == few.variant.replace("rows", "tiles")
        private = found.private
        assert private["GROUP"] == few.private["GROUP"]
        assert private["STEPS"] == few.private["STEPS"]
        assert private["SECTIONS"] == few.tile["SPLITS"]
        assert private["PIECES"] % private["TOGETHER"] == 0
        assert private["PIECES"] == private["TOGETHER"] or private["STEPS"] * private["SECTIONS"] == 1
        assert found.tile["TILE_N"] * parts == 16 * private["PIECES"]
        assert found.tile["TILE_T"] == 8 * private["TILES"]
        assert found.tile["TILE_T"] * ceil_div(rows, found.tile["TILE_T"]) < rows + found.tile["TILE_T"]
        assert private["SHARED"] <= MOST_SHARED - 1024


def test_products_of_long_rows_keep_the_warpgroups_of_few() -> None:
    shape = {"outs": 5120, "width": 17408, "y_stride": 5120, "y_first": 0}
    constants = {"ADD": 1, "BLOCK": 128, "ABLOCK": 128}
    few = chosen("matmul_ternary_block", constants, 1, **shape)
    for rows, span_t in ((8, 8), (9, 16), (17, 32), (64, 64)):
        found = chosen("matmul_ternary_block", constants, rows, **shape)
        assert found.tile == {**few.tile, "TILE_T": span_t}
        assert {name: found.private[name] for name in ("GROUP", "ROW_TILES")} == {
            name: few.private[name] for name in ("GROUP", "ROW_TILES")
        }


def test_rows_that_fit_no_block_of_warpgroups_have_another_kernel_from_the_first_on() -> None:
    shape = {"outs": 60000, "width": 20480, "y_stride": 60000, "y_first": 0}
    assert block_group_tile(8, shape["width"], 3, 1)
    for rows in (1, 8, 64):
        assert chosen("matmul_ternary_block", {"ADD": 0, "BLOCK": 128, "ABLOCK": 32}, rows, **shape).variant == "few"


def test_sums_that_are_exact_integers_have_the_kernels_of_default_steps() -> None:
    spec = CATALOGUE["matmul_ternary"]
    for rows in (9, 32, 64):
        params = {"rows": rows, "outs": 2560, "width": 2560, "y_stride": 2560, "y_first": 0}
        own = tuning.select_tuning(spec, {"ADD": 1}, params, tensor_cores=True, wgmma=True)
        assert chosen("matmul_ternary", {"ADD": 1}, **params) == own


def test_gate_and_up_are_joined_for_every_number_of_rows_or_for_none() -> None:
    for width in (2560, 8192):
        found: list[Any] = []
        for rows in (1, 8, 9, 64):
            try:
                found.append(
                    chosen("matmul_ternary_glu", {"ACT": 0, "BLOCK": 0, "ABLOCK": 0}, rows, outs=6912, width=width)
                )
            except UnsupportedError:
                found.append(None)
        assert all(found) if width == 2560 else not any(found)


@pytest.mark.parametrize("kernel", ["attention", "rope_attention_mixed"])
def test_attention_shares_positions_alike_for_every_number_of_rows(kernel: str) -> None:
    for (heads, kv_heads), head_dim in itertools.product(HEADS, (64, 128, 256)):
        params = {"n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim}
        few = chosen(kernel, {"KV": 1}, FEW_ROWS, **params)
        assert chosen(kernel, {"KV": 1}, 1, **params) == few
        for rows in (9, BATCH_ROWS):
            found = chosen(kernel, {"KV": 1}, rows, **params)
            shares = found.private.get("SHARES", found.tile["SPLITS"])
            assert shares == few.private.get("SHARES", few.tile["SPLITS"])
            assert found.tile["TILE_N"] == few.tile["TILE_N"]
            assert found.private.get("SHARE") == few.private.get("SHARE")
            private, of_few = found.private, few.private
            assert private["GROUP"] * private.get("LIKE", 1) == of_few["GROUP"] * of_few.get("LIKE", 1)
            assert private.get("LIKE") == private.get("TILES")
            part_bytes = 4 * BATCH_ROWS * heads * shares * (head_dim + 4)
            assert found.workspace == 4 * MEETINGS + part_bytes
            assert found.private.get("SHARED", 0) <= MOST_SHARED - (20 << 10), "and its static shared memory"


def test_more_heads_than_meetings_share_no_positions() -> None:
    for kernel in ("attention", "rope_attention_mixed"):
        tuned = chosen(kernel, {"KV": 1}, 1, n_heads=128, n_kv_heads=64, head_dim=128)
        assert tuned.private.get("SHARES", tuned.tile["SPLITS"]) == 1


def test_a_norm_of_many_rows_has_the_threads_of_few() -> None:
    for width in (2560, 4096, 12288):
        few = chosen("rms_norm_quantize", {"NORM": 1, "ABLOCK": 0}, 1, width=width, stride=width)
        for rows in (9, 33, 64):
            found = chosen("rms_norm_quantize", {"NORM": 1, "ABLOCK": 0}, rows, width=width, stride=width)
            assert found.private["GROUP"] == few.private["GROUP"]
            assert found.private["VECTORS"] == few.private["VECTORS"]


def test_other_gpus_join_gate_and_up_of_few_rows() -> None:
    spec = CATALOGUE["matmul_ternary_glu"]
    params = {"rows": 1, "outs": 6912, "width": 2560}
    constants = {"ACT": 0, "BLOCK": 0, "ABLOCK": 0}
    found = invariant_tiles.select_tuning(spec, constants, params, tensor_cores=True, wgmma=False)
    assert found == tuning.select_tuning(spec, constants, {**params, "rows": FEW_ROWS}, tensor_cores=True, wgmma=False)
