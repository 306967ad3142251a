"""The optional kernel that converts the codes of a model file while it is loaded, which spares the host the work."""

from __future__ import annotations

from bitnet_hal.kernels.params import ROWS, u32
from bitnet_hal.kernels.sizes import product
from bitnet_hal.kernels.spec import Binding, Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.rounding import ceil_div


def block_bytes(block: int) -> int:
    """Return the bytes of a Q2_0 block of `block` columns: an f16 scale and two bits a column."""
    return 2 + block // 4


def _blocks(params: Params, constants: Constants) -> int:
    block = constants["BLOCK"]
    return int(params["rows"]) * (int(params["columns"]) // block) * block_bytes(block)


def _codes(params: Params, constants: Constants) -> int:
    return (int(params["first"]) + int(params["rows"])) * (int(params["width"]) // 4)


def _words(params: Params, tile: Constants) -> Grid:
    """Return one workgroup for TILE_N words of w, 16 codes each."""
    return ceil_div(int(params["rows"]) * (int(params["width"]) // 16), tile["TILE_N"]), 1, 1


REPACK_Q2_0 = KernelSpec(
    name="repack_q2_0",
    meaning="Rows first..first + rows - 1 of w get the codes of blocks of BLOCK columns as GGUF's type Q2_0 has them: "
    "an f16 scale, which is not copied, then four consecutive codes in a byte, the first in bits 1-0. Blocks with a "
    "scale of 0 and padding columns get code 1. odd[0] becomes 1 if a block with another scale holds a code of 3, or "
    "only codes of 1.",
    bindings=(
        Binding("blocks", "u8", "r", "[rows, columns / BLOCK, 2 + BLOCK / 4]", _blocks),
        Binding("w", "u8", "rw", "[first + rows, width / 4]", _codes),
        Binding("odd", "i32", "rw", "[1]", product()),
    ),
    params=(
        ROWS,
        u32("columns", "matrix columns K, a multiple of BLOCK"),
        u32("width", "columns padded to 128"),
        u32("first", "row of w for row 0 of blocks"),
    ),
    constants={"BLOCK": (64, 128)},
    tuning=("TILE_N",),
    grid=_words,
    base=False,
)
