"""Tunings of the kernels in this folder, which bitnet-cuda and bitnet-rocm share.

GROUP is the threads of a block, TILE_N and TILE_T what it makes; the sources say what a kernel's other constants are.
"""

from __future__ import annotations

from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.lm_head_int8 import HEAD_GROUP
from bitnet_hal.plugin import FEW_ROWS, Constants, Params, Tuning
from bitnet_hal.rounding import ceil_div
from bitnet_hal.tuning.query import shared_heads

MANY_ROWS = 32
"""Rows above which blocks of half that size are as quick, and leave room for others."""
MOST_QUANTIZING = 640
"""Threads that share a row's norm and quantization, at most."""
ROTATED_HEADS = 8
"""Heads that a block of rope_store_kv_heads.cu rotates."""
WORKSPACE = 1 << 20
"""Bytes that blocks which share an output leave their parts in; see meeting.cuh."""
MEETINGS = 4096
"""Outputs that may be shared so: counters at the start of the workspace."""


def tuned(
    group: int, tile: Constants | None = None, variant: str = "", *, workspace: int = 0, **private: int
) -> Tuning:
    """private: the source's constants beside GROUP, of which SHARED is bytes of dynamic shared memory."""
    return Tuning(dict(tile or {}), variant, {"GROUP": group, **private}, workspace)


def select_tuning(name: str, constants: Constants, params: Params, units: int) -> Tuning:
    """Tuning of one launch. units: blocks that keep the GPU busy. UnsupportedError for what other kernels do better."""
    if name in CHOICES:
        return CHOICES[name](params)
    if name == "rope_attention":
        return rope_attention(params, units)
    if name.startswith("matmul_ternary"):
        return ternary(params, units)
    if name == "matmul_dense":
        return dense(constants, params)
    if name == "rope_store_kv":
        if constants["KV"] == 1 and not constants["INTERLEAVED"] and int(params["head_dim"]) % 4 == 0:
            return tuned(32 * ROTATED_HEADS, {"TILE_N": ROTATED_HEADS}, "heads")
        return tuned(64, {"TILE_N": 1})
    return tuned(512)


def few(rows: int) -> int:
    """The least of the row counts that kernels for few rows are made for; 8 for more of them."""
    return next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == FEW_ROWS)


def embed(params: Params) -> Tuning:
    """A thread reads its columns one after the other, each from memory: one column where there are few rows."""
    return tuned(128, {"TILE_N": 128 if int(params["rows"]) <= FEW_ROWS else 1024})


def attention(params: Params) -> Tuning:
    """attention.cu."""
    return tuned(128, {"TILE_N": shared_heads(params, 4), "TILE_T": 1, "SPLITS": 1})


def rope_attention(params: Params, units: int) -> Tuning:
    """rope_attention.cu: query heads of a block, and blocks that share a row's positions, each with SPAN at least."""
    rows, heads, head_dim = (int(params[name]) for name in ("rows", "n_heads", "head_dim"))
    tile_n = shared_heads(params, min(8, 1024 // head_dim))
    most = (WORKSPACE - 4 * MEETINGS) // (4 * rows * heads * (head_dim + 4))  # parts that fit
    splits = min(32, most, units // (rows * (heads // tile_n)))
    lanes = 1 << (ceil_div(head_dim, 8) - 1).bit_length()
    tile = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": max(1, splits)}
    return tuned(256, tile, workspace=WORKSPACE, DIM=head_dim, LANES=lanes, UNROLL=4, SPAN=128)


def ternary(params: Params, units: int) -> Tuning:
    """Ternary products with dot products of four bytes: smaller tiles where larger ones would leave units idle."""
    rows = int(params["rows"])
    if rows <= FEW_ROWS:
        return tuned(128, {"TILE_N": 8, "TILE_T": few(rows), "SPLITS": 1})
    enough = ceil_div(int(params["outs"]), 128) * ceil_div(rows, 64) >= 2 * units
    return tuned(256, {"TILE_N": 128 if enough else 64, "TILE_T": 64 if rows > 32 else 32, "SPLITS": 1}, "tile")


def dense(constants: Constants, params: Params) -> Tuning:
    """matmul_dense_few.cu for f16 and few rows, else matmul_dense.cu."""
    rows = int(params["rows"])
    if constants["DTYPE"] == 1 and int(params["width"]) % 8 == 0 and rows <= FEW_ROWS:
        return tuned(128, {"TILE_N": 16, "TILE_T": few(rows)}, "few", UNROLL=1)
    return tuned(128, {"TILE_N": 8, "TILE_T": few(rows)})


def quantize(params: Params) -> Tuning:
    """Threads of a row of `stride` columns, and how many fours of columns each keeps in registers: half as many threads
    where there are rows enough to fill the GPU twice."""
    fours = int(params["stride"]) // 4
    vectors = ceil_div(fours, MOST_QUANTIZING if int(params["rows"]) <= MANY_ROWS else MOST_QUANTIZING // 2)
    return tuned(32 * ceil_div(fours, 32 * vectors), VECTORS=vectors, LATE=0)


def argmax_advance(params: Params) -> Tuning:
    """Blocks that share a row's logits: no more of all rows than run at a time on a large GPU."""
    splits = min(32, 512 // int(params["rows"])) if int(params["vocab"]) >= 1 << 14 else 1
    return tuned(1024, {"SPLITS": max(1, splits)}, workspace=WORKSPACE)


def words(params: Params, element_bytes: int) -> int:
    """32-bit words of a row of the head that a lane reads at a time."""
    return 4 if element_bytes * int(params["width"]) % 16 == 0 else 1


def approx_logits(params: Params) -> Tuning:
    """Drafts of the exact small head. UnsupportedError for several rows: those of eight took a quarter more time than
    all their logits on an H200."""
    if (rows := int(params["rows"])) > 1:
        raise UnsupportedError(f"drafts of {rows} rows cost more than all their logits", operation="tuning")
    return tuned(256, {"TILE_N": HEAD_GROUP, "TILE_T": 1}, WORDS=words(params, 1), RESIDENT=4)


def refine_logits(params: Params) -> Tuning:
    """The logits that drafts leave open: the more rows, the fewer blocks for each, which all look for its bound."""
    rows = int(params["rows"])
    tile_n = 1024 if rows <= 2 else 4096 if rows <= 16 else 8192 if rows <= 32 else 16384
    return tuned(256, {"TILE_N": tile_n, "TILE_T": 1}, WORDS=words(params, 2))


CHOICES = {
    "attention": attention,
    "argmax_advance": argmax_advance,
    "rms_norm_quantize": quantize,
    "glu_norm_quantize": quantize,
    "embed_rows": embed,
    "embed_rows_ternary": embed,
    "rms_norm": lambda params: tuned(512, EACH=ceil_div(int(params["width"]), 512)),
    "top_k": lambda _: tuned(1024, {"SPLITS": 1}),
    "pack_head": lambda _: tuned(256, {"TILE_N": 8}),
    "approx_logits": approx_logits,
    "refine_logits": refine_logits,
}
"""By kernel, where its sizes alone decide."""
