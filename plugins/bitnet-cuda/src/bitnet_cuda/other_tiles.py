"""Tunings of products that `bitnet tune` measures beside the selected one, which was chosen on one H200.

Each function takes the selected tuning, which tells the kernel's source and the sizes that must stay.
"""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div

from bitnet_cuda.decode_tiles import UNIT, block_row, norm_few_tile
from bitnet_cuda.kernels.portable.tiles import dense as portable_dense
from bitnet_cuda.kernels.portable.tiles import other_dense, other_ternary
from bitnet_cuda.tensor_tiles import STREAM, WIDE, mma_tile

MOST_WARPS = 32
"""The maximum number of warps of a block."""
PAIRS = (1, 2, 3)
"""The pairs of pieces of weight rows of a block of block_row.cuh."""

Choice = Callable[[Tuning, Constants, Params], list[Tuning]]


def others(name: str, selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    """Return further tunings of a launch: none for a kernel that is not a product, or whose tile is the only one."""
    choice = _CHOICES.get((name, selected.variant))
    found = choice(selected, constants, params) if choice else []
    return [tuning for tuning in found if tuning.key != selected.key]


def _few(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    """Vary the outputs of a block, and the columns of a warp: half as many warps have twice as many."""
    units = ceil_div(int(params["width"]), UNIT)
    steps = selected.private["STEPS"]
    sizes = [(tile_n, each) for tile_n in (16, 32) for each in (steps, 2 * steps)]
    changes = []
    for tile_n, each in sizes:
        warps = max(4, ceil_div(units, each))
        if warps <= MOST_WARPS:
            changes.append(({"TILE_N": tile_n}, {"GROUP": 32 * warps, "STEPS": each}))
    return selected.and_with(changes)


def _norm(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    return selected.and_with([({"TILE_N": tile_n}, {}) for tile_n in (16, 32)])


def _norm_glu(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    """Vary the outputs of a block, each of which takes a row of the gate's and of the up projection's weights: codes of
    64 rows for several steps do not fit the registers."""
    sizes = (8, 16) if selected.private["STEPS"] > 1 else (8, 16, 32)
    return selected.and_with([({"TILE_N": tile_n}, {}) for tile_n in sizes])


def _norm_few(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    return [norm_few_tile(params, tile_n) for tile_n in (32, 64)]


def _norm_block(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    return selected.and_with([({"TILE_N": 32 * pairs}, {}) for pairs in PAIRS])


def _norm_glu_block(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    return selected.and_with([({"TILE_N": 16 * pairs}, {}) for pairs in PAIRS])


def _block_row(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    row = block_row("row", int(params["width"]), int(params["outs"]), 16, SPLITS=1)
    return row.and_with([({"TILE_N": 32 * pairs}, {}) for pairs in PAIRS])


def _mma(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    return [mma_tile(64, 64, (2, 2), 4), mma_tile(128, 128, (4, 2), 4)]


def _block_mma(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    return [mma_tile(64, 32, (4, 1), 4, resident=4), mma_tile(64, 64, (2, 2), 4, resident=3)]


def _dense_of_few_rows(selected: Tuning, constants: Constants, params: Params) -> list[Tuning]:
    """Return tiles of the kernel without tensor cores, which serves few rows."""
    if params["rows"] > FEW_ROWS:
        return []
    return portable_dense(constants, params).and_with([({"TILE_N": 8}, {"UNROLL": each}) for each in (1, 2)])[1:]


_CHOICES: dict[tuple[str, str], Choice] = {
    ("matmul_ternary", ""): lambda selected, *_: other_ternary(selected),
    ("matmul_ternary", "tile"): lambda selected, *_: other_ternary(selected),
    ("matmul_ternary", "few"): _few,
    ("matmul_ternary", "mma"): _mma,
    ("matmul_ternary", "stream"): lambda *_: list(STREAM.values()),
    ("matmul_ternary_block", ""): lambda selected, *_: other_ternary(selected),
    ("matmul_ternary_block", "tile"): lambda selected, *_: other_ternary(selected),
    ("matmul_ternary_block", "few"): _few,
    ("matmul_ternary_block", "row"): _block_row,
    ("matmul_ternary_block", "ring"): _block_row,
    ("matmul_ternary_block", "mma"): _block_mma,
    ("matmul_ternary_block", "wide"): lambda *_: list(WIDE.values()),
    ("matmul_dense", ""): lambda selected, *_: other_dense(selected),
    ("matmul_dense", "few"): lambda selected, *_: other_dense(selected),
    ("matmul_dense", "stream"): _dense_of_few_rows,
    ("matmul_dense", "mma"): _dense_of_few_rows,
    ("norm_matmul", ""): _norm,
    ("norm_matmul", "few"): _norm_few,
    ("norm_matmul", "block"): _norm_block,
    ("norm_matmul_glu", ""): _norm_glu,
    ("norm_matmul_glu", "block"): _norm_glu_block,
}
"""The functions by kernel and variant."""
