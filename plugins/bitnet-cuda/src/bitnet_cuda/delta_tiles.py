"""Tunings of the kernels of delta nets and rotated weights."""

from __future__ import annotations

from bitnet_hal.plugin import Constants, Params, Tuning

from bitnet_cuda.kernels.portable.delta_tiles import select_tuning as portable
from bitnet_cuda.kernels.portable.tiles import tuned
from bitnet_cuda.limits import BATCH_ROWS

MOST_KEYS = 128
"""The maximum elements of a key in gated_delta_rule_chunk.cu; more do not fit shared memory."""
HOPPER_CHUNK = 64
"""The rows of a chunk on compute capability 9.0."""
SMALL_CHUNK = 32
"""The rows of a chunk on GPUs with less shared memory per block than Hopper's."""


def select_tuning(name: str, constants: Constants, params: Params, *, tensor_cores: bool, wgmma: bool) -> Tuning | None:
    """Return the tuning of a launch, or None if this module does not tune the kernel."""
    if name == "gated_delta_rule" and tensor_cores and int(params["rows"]) > BATCH_ROWS:
        tuning = chunk(params, HOPPER_CHUNK if wgmma else SMALL_CHUNK)
        if tuning:
            return tuning
    return portable(name, constants, params)


def chunk(params: Params, rows: int) -> Tuning | None:
    """Return the tuning of gated_delta_rule_chunk.cu with chunks of `rows` rows, or None if heads are not whole tiles.

    SHARED holds f32 values in padded rows: keys and queries [rows, keys], two matrices [rows, rows], the state and
    values [keys + rows, TILE_N], and four vectors [rows].
    """
    keys = int(params["key_dim"])
    value_dim = int(params["value_dim"])
    tile_n = next((n for n in (64, 32, 16, 8) if value_dim % n == 0), 0)
    if keys > MOST_KEYS or keys % 16 or not tile_n:
        return None
    inputs = 2 * rows * (keys + 8)
    products = 2 * rows * (rows + 8)
    state = (keys + rows) * (tile_n + 4)
    vectors = 4 * rows
    shared = 4 * (inputs + products + state + vectors)
    return tuned(4 * rows, {"TILE_N": tile_n}, "chunk", KEY=keys, CHUNK=rows, SHARED=shared)
