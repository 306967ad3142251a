"""Tunings of the kernels in this folder, which bitnet-cuda and bitnet-rocm share.

GROUP is the number of threads of a block; TILE_N and TILE_T are the sizes of its output tile. The header of each
source explains its other constants.
"""

from __future__ import annotations

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.lm_head_int8 import HEAD_GROUP
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div
from bitnet_hal.tuning.query import shared_heads

F16 = 1
INT8 = 2
"""Values of the constants DTYPE and KV."""
MANY_ROWS = 32
"""The number of rows above which blocks of half the size are as fast and leave room for other blocks."""
MOST_QUANTIZING = 640
"""The maximum number of threads that share the norm and quantization of a row."""
ROTATED_HEADS = 8
"""The number of heads that a block of rope_store_kv_heads.cu rotates."""
WORKSPACE = 1 << 20
"""The size in bytes of the memory in which blocks that share an output exchange partial results (meeting.cuh)."""
MEETINGS = 4096
"""The maximum number of shared outputs: each has a 32-bit counter at the start of the workspace."""
MOST_MEETING_HEADS = MEETINGS // 64
"""The maximum number of heads of which those of 64 rows can be shared."""
MOST_SPLITS = 32
"""The maximum number of blocks that share the positions or logits of a row."""
FEWEST_SPLIT_LOGITS = 1 << 14
"""The minimum size of a vocabulary whose logits are shared by several blocks."""


def tuned(
    group: int, tile: Constants | None = None, variant: str = "", *, workspace: int = 0, **private: int
) -> Tuning:
    """Return a tuning with blocks of `group` threads.

    private: the further constants of the source; SHARED is the size in bytes of the dynamic shared memory.
    """
    return Tuning(dict(tile or {}), variant, {"GROUP": group, **private}, workspace)


def select_tuning(name: str, constants: Constants, params: Params, units: int) -> Tuning:
    """Return the tuning of a launch. units: the number of blocks that keep the GPU busy.

    Raises UnsupportedError if other kernels serve the launch better.
    """
    if name in CHOICES:
        return CHOICES[name](params)
    if name == "rope_attention":
        return rope_attention(params, units)
    if name.startswith("matmul_ternary"):
        return ternary(params, units)
    if name == "matmul_dense":
        return dense(constants, params)
    if name == "rope_store_kv":
        return rope_store_kv(constants, params)
    return tuned(512)


def few(rows: int) -> int:
    """Return the smallest TILE_T of the kernels for few rows that holds all rows, or 8 if none does."""
    return next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == FEW_ROWS)


def embed(params: Params) -> Tuning:
    """Return the tuning of embed_rows and embed_rows_ternary.

    A thread reads its columns one after the other, each from memory: it has one column if there are few rows.
    """
    return tuned(128, {"TILE_N": 128 if int(params["rows"]) <= FEW_ROWS else 1024})


def rms_norm(params: Params) -> Tuning:
    """Return the tuning of rms_norm.cu. EACH: the columns of a thread."""
    return tuned(512, EACH=ceil_div(int(params["width"]), 512))


def top_k(_: Params) -> Tuning:
    """Return the tuning of top_k.cu."""
    return tuned(1024, {"SPLITS": 1})


def pack_head(_: Params) -> Tuning:
    """Return the tuning of pack_head.cu."""
    return tuned(256, {"TILE_N": 8})


def repack_q2_0(_: Params) -> Tuning:
    """Return the tuning of repack_q2_0.cu."""
    return tuned(256, {"TILE_N": 256})


def attention(params: Params) -> Tuning:
    """Return the tuning of attention.cu."""
    return tuned(128, {"TILE_N": shared_heads(params, 4), "TILE_T": 1, "SPLITS": 1})


def attention_split(params: Params, units: int, most_rows: int = FEW_ROWS) -> Tuning:
    """Return the tuning of attention_split.cu, the same for 1 to `most_rows` rows, for which it has a workspace.

    SPLITS: the most blocks that share the positions of a row, at least SPAN for each: with one row they fill the GPU.
    LANES: the lanes that share a position. UNROLL: the positions of a lane in one round.
    """
    heads = int(params["n_heads"])
    head_dim = int(params["head_dim"])
    tile_n = shared_heads(params, 4)
    splits = max(1, min(MOST_SPLITS, units // (heads // tile_n))) if heads <= MOST_MEETING_HEADS else 1
    part_bytes = 4 * most_rows * heads * splits * (head_dim + 4)
    tile = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": splits}
    workspace = 4 * MEETINGS + part_bytes
    return tuned(256, tile, "split", workspace=workspace, DIM=head_dim, LANES=lanes(head_dim), UNROLL=4, SPAN=64)


def lanes(head_dim: int) -> int:
    """Return the number of lanes that share a cached position, with eight elements each (kv_piece.cuh)."""
    return 1 << (ceil_div(head_dim, 8) - 1).bit_length()


def rope_attention(params: Params, units: int) -> Tuning:
    """Return the tuning of rope_attention.cu.

    TILE_N: the query heads of a block. SPLITS: the blocks that share the positions of a row, at least SPAN for each.
    """
    rows = int(params["rows"])
    heads = int(params["n_heads"])
    head_dim = int(params["head_dim"])
    tile_n = shared_heads(params, min(8, 1024 // head_dim))
    part_bytes = 4 * rows * heads * (head_dim + 4)
    fitting_splits = (WORKSPACE - 4 * MEETINGS) // part_bytes
    blocks = rows * (heads // tile_n)
    splits = max(1, min(MOST_SPLITS, fitting_splits, units // blocks))
    tile = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": splits}
    return tuned(256, tile, workspace=WORKSPACE, DIM=head_dim, LANES=lanes(head_dim), UNROLL=4, SPAN=128)


def rope_store_kv(constants: Constants, params: Params) -> Tuning:
    """Return the tuning of rope_store_kv_heads.cu if it serves the cache, else of rope_store_kv.cu."""
    whole_vectors = int(params["head_dim"]) % 4 == 0
    if constants["KV"] == F16 and not constants["INTERLEAVED"] and whole_vectors:
        return tuned(32 * ROTATED_HEADS, {"TILE_N": ROTATED_HEADS}, "heads")
    return tuned(64, {"TILE_N": 1})


def ternary(params: Params, units: int) -> Tuning:
    """Return the tuning of a ternary product by dot products of four bytes.

    Many rows use smaller tiles if larger tiles would leave some of the GPU's `units` idle.
    """
    rows = int(params["rows"])
    if rows <= FEW_ROWS:
        return tuned(128, {"TILE_N": 8, "TILE_T": few(rows), "SPLITS": 1})
    large_tiles = ceil_div(int(params["outs"]), 128) * ceil_div(rows, 64)
    tile_n = 128 if large_tiles >= 2 * units else 64
    tile_t = 64 if rows > 32 else 32
    return tuned(256, {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "tile")


def dense(constants: Constants, params: Params) -> Tuning:
    """Return the tuning of matmul_dense_few.cu for few rows of an f16 table, else of matmul_dense.cu."""
    rows = int(params["rows"])
    if constants["DTYPE"] == F16 and int(params["width"]) % 8 == 0 and rows <= FEW_ROWS:
        return tuned(128, {"TILE_N": 16, "TILE_T": few(rows)}, "few", UNROLL=1)
    return tuned(128, {"TILE_N": 8, "TILE_T": few(rows)})


def other_ternary(selected: Tuning) -> list[Tuning]:
    """Return the tunings of a ternary product that `bitnet tune` measures beside the selected one of `ternary`.

    Few rows: other numbers of threads that share a weight row (GROUP / TILE_N, at most 32). Many rows: other tiles.
    """
    if selected.variant == "tile":
        sizes = [(256, tile_n, tile_t) for tile_n in (64, 128) for tile_t in (32, 64)]
    else:
        sizes = [(group, tile_n, selected.tile["TILE_T"]) for group, tile_n in ((128, 4), (128, 16), (256, 16))]
    changes = [({"TILE_N": tile_n, "TILE_T": tile_t}, {"GROUP": group}) for group, tile_n, tile_t in sizes]
    return selected.and_with(changes)[1:]


def other_dense(selected: Tuning) -> list[Tuning]:
    """Return the tunings of a dense product that `bitnet tune` measures beside the selected one of `dense`."""
    if selected.variant == "few":
        changes = [({"TILE_N": tile_n}, {"UNROLL": unroll}) for tile_n, unroll in ((8, 1), (8, 2), (16, 2))]
    else:
        changes = [({"TILE_N": tile_n}, {}) for tile_n in (4, 16)]
    return selected.and_with(changes)[1:]


def quantize(params: Params) -> Tuning:
    """Return the tuning of the kernels that norm and quantize rows of `stride` columns.

    VECTORS: the vectors of four columns that a thread keeps in registers. A row has half as many threads if there are
    enough rows to fill the GPU twice.
    """
    row_vectors = int(params["stride"]) // 4
    most_threads = MOST_QUANTIZING
    if int(params["rows"]) > MANY_ROWS:
        most_threads //= 2
    vectors = ceil_div(row_vectors, most_threads)
    return tuned(32 * ceil_div(row_vectors, 32 * vectors), VECTORS=vectors, LATE=0)


def argmax_advance(params: Params) -> Tuning:
    """Return the tuning of argmax_advance.cu.

    SPLITS: the blocks that share the logits of a row, limited so that the blocks of all rows run at once on a large
    GPU.
    """
    splits = 1
    if int(params["vocab"]) >= FEWEST_SPLIT_LOGITS:
        splits = max(1, min(MOST_SPLITS, 512 // int(params["rows"])))
    return tuned(1024, {"SPLITS": splits}, workspace=WORKSPACE)


def words(params: Params, element_bytes: int) -> int:
    """Return the number of 32-bit words of a head's row that a lane reads with one load."""
    return 4 if element_bytes * int(params["width"]) % 16 == 0 else 1


def approx_logits(params: Params) -> Tuning:
    """Return the tuning of approx_logits.cu.

    Raises UnsupportedError for several rows: the approximate logits of eight rows took a quarter more time than all
    exact logits on an H200.
    """
    rows = int(params["rows"])
    if rows > 1:
        message = f"approximate logits of {rows} rows take longer than the exact logits; at most 1 row is supported"
        raise UnsupportedError(message, operation="tuning")
    return tuned(256, {"TILE_N": HEAD_GROUP, "TILE_T": 1}, WORDS=words(params, 1), RESIDENT=4)


def refine_logits(params: Params) -> Tuning:
    """Return the tuning of refine_logits.cu.

    Every block of a row searches for the row's bound, so more rows have fewer blocks each.
    """
    rows = int(params["rows"])
    if rows <= 2:
        tile_n = 1024
    elif rows <= 16:
        tile_n = 4096
    elif rows <= 32:
        tile_n = 8192
    else:
        tile_n = 16384
    return tuned(256, {"TILE_N": tile_n, "TILE_T": 1}, WORDS=words(params, 2))


CHOICES = {
    "attention": attention,
    "argmax_advance": argmax_advance,
    "rms_norm_quantize": quantize,
    "glu_norm_quantize": quantize,
    "embed_rows": embed,
    "embed_rows_ternary": embed,
    "rms_norm": rms_norm,
    "top_k": top_k,
    "pack_head": pack_head,
    "repack_q2_0": repack_q2_0,
    "approx_logits": approx_logits,
    "refine_logits": refine_logits,
}
"""The functions for the kernels whose tuning depends on sizes alone."""
