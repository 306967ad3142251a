"""Choice of the source and the constants of a launch. Nothing here was measured on an AMD GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.plugin import FEW_ROWS, Constants, KernelSpec, Params, Tuning
from bitnet_hal.rounding import ceil_div

if TYPE_CHECKING:  # the same file, where type checkers find it
    from bitnet_cuda.kernels.portable.delta_tiles import select_tuning as delta_tile
    from bitnet_cuda.kernels.portable.tiles import other_dense, other_ternary, ternary, tuned
    from bitnet_cuda.kernels.portable.tiles import select_tuning as portable
else:
    from bitnet_rocm.kernels.portable.delta_tiles import select_tuning as delta_tile
    from bitnet_rocm.kernels.portable.tiles import other_dense, other_ternary, ternary, tuned
    from bitnet_rocm.kernels.portable.tiles import select_tuning as portable

MOST_COLUMNS = 32_768
"""The maximum width of a norm fused with its product: codes, scales and sums fit 48 KiB of shared memory."""
MFMA = ("gfx90a", "gfx942")
"""Architectures with MFMA matrix cores that kernels/amd/matrix.cuh supports, in waves of 64 threads."""
WMMA = ("gfx11", "gfx120")
"""Architectures with WMMA matrix cores that it supports, in waves of 32 threads."""
WAVES_OF_BOTH = ("gfx10", "gfx11", "gfx12")
"""Architectures with waves of 32 and of 64 threads; the compiler's default is 32."""
WAVE = "WAVEFRONT"
"""The private constant with the threads of a wave for which a kernel is compiled (`compile.options`)."""


def select_tuning(
    spec: KernelSpec, constants: Constants, params: Params, compute_units: int, architecture: str = ""
) -> Tuning:
    """Return the tuning of one launch. architecture: such as "gfx90a:sramecc+:xnack-"."""
    name = spec.name
    if delta := delta_tile(name, constants, params):
        return delta
    if name in ("norm_matmul", "norm_matmul_glu"):
        return fused(constants, params)
    if name in ("matmul_ternary", "matmul_ternary_block") and int(params["rows"]) > FEW_ROWS:
        tile = ternary(params, compute_units)
        return matrix(tile, architecture) if architecture.startswith((*MFMA, *WMMA)) else tile
    return portable(name, constants, params, compute_units)


def candidate_tunings(
    spec: KernelSpec, constants: Constants, params: Params, compute_units: int, architecture: str = ""
) -> list[Tuning]:
    """Return the selected tuning, then others that `bitnet tune` measures.

    These are other tiles, and waves of 64 threads if the GPU has both widths.
    """
    selected = select_tuning(spec, constants, params, compute_units, architecture)
    others: list[Tuning] = []
    if spec.name in ("norm_matmul", "norm_matmul_glu"):
        others = selected.and_with([({"TILE_N": tile_n}, {}) for tile_n in (8, 32)])[1:]
    elif selected.variant == "matrix":
        tiles = other_ternary(ternary(params, compute_units))
        others = [matrix(tile, architecture) for tile in tiles if tile.tile != selected.tile]
    elif spec.name in ("matmul_ternary", "matmul_ternary_block"):
        others = other_ternary(selected)
    elif spec.name == "matmul_dense" and selected.variant != "narrow":
        others = other_dense(selected)
    product = spec.name.startswith(("matmul_ternary", "matmul_dense", "norm_matmul"))
    if product and selected.variant != "matrix" and architecture.startswith(WAVES_OF_BOTH):
        others.append(replace(selected, private={**selected.private, WAVE: 64}))
    return [selected, *others]


def matrix(tile: Tuning, architecture: str) -> Tuning:
    """Return the same tile on matrix cores: four waves, each with 32 activation rows."""
    waves_t = tile.tile["TILE_T"] // 32
    wave = 64 if architecture.startswith(MFMA) else 32
    return tuned(4 * wave, tile.tile, "matrix", WAVES_N=4 // waves_t, WAVES_T=waves_t)


def fused(constants: Constants, params: Params) -> Tuning:
    """Return the tuning of a norm fused with its product.

    TILE_N counts the rows of each half in norm_matmul_glu.cu. A warp multiplies 256 columns per step, in STEPS steps.
    Raises UnsupportedError if separate launches are faster or shared memory is too small.
    """
    rows = int(params["rows"])
    columns = int(params["columns"])
    if rows > 1 or columns > MOST_COLUMNS:
        raise UnsupportedError(
            f"a norm fused to its product serves one row of {MOST_COLUMNS} columns, not {rows} of {columns}",
            backend="rocm",
            operation="tuning",
        )
    pieces = ceil_div(int(params["width"]), 256)
    min_steps = 2 if pieces > 16 else 1
    steps = max(min_steps, ceil_div(pieces, 32))  # at most 32 warps
    warps = max(4, ceil_div(pieces, steps))
    variant = "block" if constants["BLOCK"] else ""
    return tuned(32 * warps, {"TILE_N": 16, "TILE_T": 1}, variant, STEPS=steps, COLUMNS=columns)
