"""The tunings of prompts and batches on a GPU with warpgroup products."""

from __future__ import annotations

import pytest
from bitnet_cuda.batch_tiles import block_group, block_rows
from bitnet_cuda.limits import MOST_SHARED, MULTIPROCESSORS
from bitnet_cuda.tensor_tiles import BLOCK_STREAM, STREAM, WIDE, select_tuning
from bitnet_hal.device import Tuning
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.rounding import ceil_div


def chosen(kernel: str, rows: int, outs: int, block: int, ablock: int) -> Tuning | None:
    params = {"rows": rows, "outs": outs, "width": 4096, "y_stride": outs, "y_first": 0}
    return select_tuning(kernel, {"BLOCK": block, "ABLOCK": ablock}, params, wgmma=True)


@pytest.mark.parametrize("tile", [*STREAM.values(), *WIDE.values(), *BLOCK_STREAM.values()])
def test_stages_fit_a_block(tile: Tuning) -> None:
    assert tile.private["SHARED"] <= MOST_SHARED


@pytest.mark.parametrize(
    ("rows", "outs", "tile"), [(512, 6144, 192), (512, 4096, 128), (512, 24576, 256), (1024, 4096, 256)]
)
def test_the_tiles_soonest_done_are_taken(rows: int, outs: int, tile: int) -> None:
    assert chosen("matmul_ternary_block", rows, outs, 128, 128) is WIDE[tile, 128]


@pytest.mark.parametrize(("block", "ablock"), [(128, 32), (64, 128), (128, 0)])
def test_finer_scales_have_their_own_kernel(block: int, ablock: int) -> None:
    assert chosen("matmul_ternary_block", 512, 4096, block, ablock) is BLOCK_STREAM[128, 128]
    with pytest.raises(UnsupportedError, match="no tile for 512 rows"):
        chosen("matmul_ternary_glu", 512, 4096, block, ablock)


@pytest.mark.parametrize(
    ("rows", "outs", "tile"), [(512, 5120, 96), (512, 34816, 128), (512, 6144, 96), (2048, 4096, 128)]
)
def test_tiles_of_96_weight_rows_where_they_fill_the_gpu(rows: int, outs: int, tile: int) -> None:
    assert chosen("matmul_ternary_block", rows, outs, 128, 32) is BLOCK_STREAM[tile, 128]


def test_gate_and_up_are_joined_for_prompts_alone() -> None:
    assert chosen("matmul_ternary_glu", 65, 4096, 256, 128) is WIDE[256, 128]
    for rows, outs in ((64, 4096), (512, 4100)):
        with pytest.raises(UnsupportedError, match="no tile"):
            chosen("matmul_ternary_glu", rows, outs, 128, 128)


BLOCK_SCALED = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096), (34816, 5120), (5120, 17408))
"""The rows and columns of matrices of Bonsai 8B and 27B."""


@pytest.mark.parametrize(("outs", "width"), BLOCK_SCALED)
def test_batches_with_block_scales_are_added_up_in_one_order(outs: int, width: int) -> None:
    """Check that the order of sums does not depend on the number of rows, and that a block fits shared memory."""
    orders = set()
    for rows in (2, 8, 9, 16, 17, 32, 33, 64):
        tile = block_group({"BLOCK": 128, "ABLOCK": 32}, {"rows": rows, "outs": outs, "width": width})
        assert tile is not None
        assert tile.private["SHARED"] <= MOST_SHARED - 1024
        assert tile.private["SPAN_T"] >= rows
        shares = tile.private["GROUP"] // 128 // tile.private["ROW_TILES"]
        assert 4 % shares == 0, "a warpgroup's column blocks are those of a line with its number"
        orders.add((shares, tile.tile["SPLITS"]))
    assert len(orders) == 1


@pytest.mark.parametrize(("outs", "width"), BLOCK_SCALED)
def test_batches_with_one_activation_scale_for_128_columns_multiply_all_tokens_at_once(outs: int, width: int) -> None:
    """Check that only four activation scales, whose sums take four times the registers, divide the tokens."""
    params = {"rows": 64, "outs": outs, "width": width}
    one_scale = block_group({"BLOCK": 128, "ABLOCK": 128}, params)
    four_scales = block_group({"BLOCK": 128, "ABLOCK": 32}, params)
    assert one_scale is not None
    assert four_scales is not None
    assert one_scale.private["COLUMNS"] == 64 > four_scales.private["COLUMNS"]
    assert {**one_scale.private, "COLUMNS": 0} == {**four_scales.private, "COLUMNS": 0}


@pytest.mark.parametrize(
    ("outs", "width", "parts"), [*((*one, 1) for one in BLOCK_SCALED), (12288, 4096, 2), (17408, 5120, 2)]
)
def test_one_to_eight_rows_with_block_scales_have_one_tuning(outs: int, width: int, parts: int) -> None:
    """Check that warps have all columns, and that a block fits a multiprocessor."""
    constants = {"BLOCK": 128, "ABLOCK": 32}
    tiles = [block_rows(constants, {"rows": rows, "outs": outs, "width": width}, parts) for rows in range(1, 9)]
    assert all(tile == tiles[0] for tile in tiles)
    if tiles[0] is None:  # too long for two blocks, or too many outputs for one round of them
        assert (outs, width, parts) in ((5120, 17408, 1), (34816, 5120, 1))
        return
    private, tile = tiles[0].private, tiles[0].tile
    assert private["GROUP"] // 32 * 256 * private["STEPS"] * tile["SPLITS"] >= width
    assert 16 * private["PIECES"] == parts * tile["TILE_N"]
    assert private["SHARED"] <= MOST_SHARED - 1024
    in_turns = outs > 100_000
    assert (ceil_div(outs, tile["TILE_N"]) * tile["SPLITS"] > MULTIPROCESSORS) is in_turns


@pytest.mark.parametrize(("rows", "tile_n"), [(1, 64), (4, 64), (5, 96), (8, 96)])
def test_few_rows_before_attention_leave_room_for_its_blocks(rows: int, tile_n: int) -> None:
    """Check that attention of a row has eight multiprocessors, and that the order of sums does not depend on this."""
    params = {"rows": rows, "outs": 6144, "width": 4096}
    tile = block_rows({"BLOCK": 128, "ABLOCK": 32, "ADD": 0}, params)
    other = block_rows({"BLOCK": 128, "ABLOCK": 32, "ADD": 1}, params)
    assert tile is not None
    assert other is not None
    assert tile.tile["TILE_N"] == tile_n
    assert ceil_div(6144, tile_n) + 8 * rows <= MULTIPROCESSORS
    order = ("GROUP", "STEPS")
    assert [tile.private[one] for one in order] == [other.private[one] for one in order]


@pytest.mark.parametrize(("outs", "width", "parts"), [(5120, 17408, 1), (34816, 12288, 1), (12288, 8192, 2)])
def test_few_rows_of_too_many_columns_or_outputs_have_another_kernel(outs: int, width: int, parts: int) -> None:
    params = {"rows": 8, "outs": outs, "width": width}
    assert block_rows({"BLOCK": 128, "ABLOCK": 32}, params, parts) is None


@pytest.mark.parametrize(("block", "ablock"), [(64, 32), (128, 0)])
def test_few_rows_with_other_scales_have_their_own_kernel(block: int, ablock: int) -> None:
    params = {"rows": 8, "outs": 4096, "width": 4096}
    assert block_rows({"BLOCK": block, "ABLOCK": ablock}, params) is None


def test_gate_and_up_of_batches_are_joined_where_they_fill_the_gpu() -> None:
    tile = chosen("matmul_ternary_glu", 32, 12288, 128, 32)
    assert tile is not None
    assert (tile.variant, tile.tile["TILE_N"]) == ("block_group", 96)


def test_prompts_with_scales_of_rows_join_their_gate() -> None:
    assert chosen("matmul_ternary_glu", 512, 6912, 0, 0) is STREAM[256, 128]


@pytest.mark.parametrize(
    ("rows", "outs", "tile"),
    [(512, 3840, (128, 128)), (512, 2560, (128, 96)), (512, 13824, (256, 128)), (1024, 2560, (256, 96))],
)
def test_tiles_of_96_tokens_where_they_save_a_turn(rows: int, outs: int, tile: tuple[int, int]) -> None:
    assert chosen("matmul_ternary", rows, outs, 0, 0) is STREAM[tile]


@pytest.mark.parametrize(("rows", "paired", "tile_t"), [(512, 1, 16), (1024, 0, 32)])
def test_warpgroups_of_attention_share_positions_where_rows_are_few(rows: int, paired: int, tile_t: int) -> None:
    params = {"rows": rows, "n_heads": 20, "n_kv_heads": 5, "head_dim": 128}
    tile = select_tuning("attention", {"KV": 1}, params, wgmma=True)
    assert tile is not None
    assert (tile.private["PAIRED"], tile.tile["TILE_T"]) == (paired, tile_t)
    assert tile.private["SHARED"] <= MOST_SHARED
