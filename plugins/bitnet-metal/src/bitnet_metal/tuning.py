"""The choice of a launch's source, tile and threads, by family of GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bitnet_hal.plugin import Tuning, TuningQuery, table
from bitnet_hal.rounding import ceil_div

GROUP = 256
"""The threads of a threadgroup, unless a function below chooses another number."""
MAX_WIDTH = 65_535
"""The maximum columns of a product whose sums are exact (proof in kernels/codes.h)."""
NORM_ROOMS = (1024, 2048, 4096, 8192, 16384)
"""Sizes in columns of the threadgroup memory of a norm fused with its product; each has its own library."""
ROTATION_ROOMS = (1024, 4096)
"""Sizes in columns of the threadgroup memory of a rotation."""
KEY_ROOMS = (64, 128, 256, 1024)
"""Sizes in elements of the threadgroup memory for a key of a delta net."""
MAX_HEAD = 512
"""The maximum elements of a head."""
WHOLE_ROWS = 64
"""The number of rows above which one threadgroup norms and rotates a whole row."""
SPLIT_TOKENS = 8192
"""The number of logits from which several threadgroups search a row."""
ARGMAX_SPLITS = 32

FEW_SHAPES = ((64, 4), (32, 4), (128, 4), (256, 4), (64, 2), (64, 8))
"""(Threads of a threadgroup, matrix rows of a simdgroup) of the products of few rows that `bitnet tune` measures."""
MAX_SUMS = 16
"""The maximum sums of a thread in these products: matrix rows times rows of activations."""

Family = Mapping[str, int]
"""A row of families.toml."""
FAMILIES: dict[str, Family] = table(__file__, "families.toml")


def select_tuning(query: TuningQuery) -> Tuning:
    """Return the tuning of a launch. Raises UnsupportedError if the device does not support it."""
    return _FORMULAS[query.spec.name](query, FAMILIES[str(query.info.extra["family"])])


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """Return the selected tuning, then others that `bitnet tune` measures.

    These are other numbers of simdgroups and of matrix rows of each; for prompts the kernel of few rows, which needs no
    threadgroup memory.
    """
    selected = select_tuning(query)
    name = query.spec.name
    if name.startswith("matmul_ternary"):
        few = [_few_tile(query, group, outs) for group, outs in FEW_SHAPES]
        return _distinct(selected, [tile for tile in few if tile.private["OUTS"] * tile.tile["TILE_T"] <= MAX_SUMS])
    if name in ("norm_matmul", "norm_matmul_glu"):
        return _distinct(selected, [_fused_tile(query, group) for group in (128, 256, 512)])
    if name == "matmul_dense":
        return _distinct(selected, [_dense_tile(query, group) for group in (64, 128, 256)])
    return [selected]


def _distinct(selected: Tuning, others: list[Tuning]) -> list[Tuning]:
    return list({tuning.key: tuning for tuning in (selected, *others)}.values())


def _embed(query: TuningQuery, family: Family) -> Tuning:
    return Tuning({"TILE_N": GROUP}, private={"GROUP": GROUP})


def _row(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of a kernel with one threadgroup per row."""
    return Tuning(private={"GROUP": GROUP})


def _ternary(query: TuningQuery, family: Family) -> Tuning:
    width = query["width"]
    if width > MAX_WIDTH:
        raise query.unsupported(f"sums of {width} columns are not exact in f32, only of {MAX_WIDTH}")
    if query["rows"] > family["few_rows"]:
        return Tuning({"TILE_N": 64, "TILE_T": 32, "SPLITS": 1}, "tiled", {"GROUP": 128})
    return _few_tile(query, family["product"], 4)


def _few_tile(query: TuningQuery, group: int, outs: int) -> Tuning:
    """Return the tile of product_few.h. outs: matrix rows of a simdgroup."""
    tile = {"TILE_N": group // 32 * outs, "TILE_T": min(4, query.padded_rows), "SPLITS": 1}
    return Tuning(tile, private={"GROUP": group, "OUTS": outs})


def _norm_matmul(query: TuningQuery, family: Family) -> Tuning:
    width = query["width"]
    if not _room(NORM_ROOMS, width) or query["rows"] > 1:
        raise query.unsupported(f"a norm for {query['rows']} rows of {width} columns has its own launch")
    return _fused_tile(query, family["fused"])


def _fused_tile(query: TuningQuery, group: int) -> Tuning:
    gated = "ACT" in query
    tile_n = group // 16 if gated else group // 8
    room = _room(NORM_ROOMS, query["width"])
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, private={"GROUP": group, "ROOM": room})


def _room(rooms: tuple[int, ...], needed: int) -> int:
    """Return the smallest of these sizes that is large enough, 0 if none is."""
    return next((room for room in rooms if needed <= room), 0)


def _head(query: TuningQuery) -> dict[str, int]:
    """Return the constants of a kernel that processes heads."""
    dim = query["head_dim"]
    if dim > MAX_HEAD:
        raise query.unsupported(f"heads of {dim} elements are larger than {MAX_HEAD}")
    return {"GROUP": 128, "HEAD_DIM": dim, "ROW_WORDS": query["row_bytes"] // 4}


def _rope_store(query: TuningQuery, family: Family) -> Tuning:
    return Tuning({"TILE_N": 4}, private=_head(query))


def _attention(query: TuningQuery, family: Family) -> Tuning:
    private = _head(query)
    dim = query["head_dim"]
    max_heads = min(8, 16 // ceil_div(dim, 64))  # as many as attend.h keeps in registers
    heads = query.shared_heads(max_heads)
    splits = 1
    if query["rows"] <= family["few_rows"]:
        splits = min(family["splits"], query["max_blocks"])
    tile = {"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=private)
    partial_results = query.padded_rows * query["n_heads"] * splits * (dim + 2)  # values, maximum, total
    return Tuning(tile, "split", private, 4 * partial_results)


def _dense(query: TuningQuery, family: Family) -> Tuning:
    return _dense_tile(query, GROUP)


def _dense_tile(query: TuningQuery, group: int) -> Tuning:
    f32_f16_or_bf16 = query["DTYPE"] <= 2
    fast = f32_f16_or_bf16 and query["width"] % 4 == 0
    tile = {"TILE_N": group // 16, "TILE_T": min(4, query.padded_rows)}
    return Tuning(tile, private={"GROUP": group, "FAST": int(fast)})


def _argmax(query: TuningQuery, family: Family) -> Tuning:
    if query["vocab"] < SPLIT_TOKENS:
        return Tuning({"SPLITS": 1}, private={"GROUP": GROUP})
    workspace = 8 * query.padded_rows * ARGMAX_SPLITS  # the largest logit of each split, and its index
    return Tuning({"SPLITS": ARGMAX_SPLITS}, "split", {"GROUP": GROUP}, workspace)


def _top_k(query: TuningQuery, family: Family) -> Tuning:
    return Tuning({"SPLITS": 1}, private={"GROUP": GROUP})


def _rotation(query: TuningQuery, family: Family) -> Tuning:
    block = query["block"]
    room = _room(ROTATION_ROOMS, block)
    if not room:
        raise query.unsupported(f"a rotation of {block} columns at a time is larger than {ROTATION_ROOMS[-1]}")
    return Tuning(private={"GROUP": GROUP, "ROOM": room})


def _rotated(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of a rotation fused with the norm or gate before it and the quantizer after it.

    A thread has four columns.
    """
    block = query["block"]
    room = ROTATION_ROOMS[0]
    normed = "NORM" in query and query["NORM"] == 1
    if block > room or block % 128:
        raise query.unsupported(f"rotations of {block} columns are not fused")
    private = {"GROUP": block // 4, "ROOM": room}
    if query.spec.name == "gated_rotate_quantize":
        dim = query["head_dim"]
        if dim % 4 or (normed and block % dim):
            raise query.unsupported(f"heads of {dim} elements are not fused")
        return Tuning({"TILE_N": 1}, private=private | {"HEAD_DIM": dim})
    whole_row = normed and query["rows"] > WHOLE_ROWS
    blocks_per_group = query["width"] // block if whole_row else 1
    return Tuning({"TILE_N": blocks_per_group}, private=private)


def _convolution(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of causal_conv1d, which divides many rows into strips."""
    if query["rows"] <= 8:
        return Tuning({"TILE_N": 64}, private={"GROUP": 64})
    return Tuning({"TILE_N": 32}, private={"GROUP": GROUP})


def _delta_rule(query: TuningQuery, family: Family) -> Tuning:
    room = next(room for room in KEY_ROOMS if query["key_dim"] <= room)
    return Tuning({"TILE_N": 32}, private={"GROUP": 256, "ROOM": room})


def _gated_norm(query: TuningQuery, family: Family) -> Tuning:
    return Tuning(private={"GROUP": 64})


_FORMULAS: dict[str, Callable[[TuningQuery, Family], Tuning]] = {
    "embed_rows": _embed,
    "embed_rows_ternary": _embed,
    "rms_norm": _row,
    "rms_norm_quantize": _row,
    "glu_norm_quantize": _row,
    "glu": _row,
    "matmul_ternary": _ternary,
    "matmul_ternary_block": _ternary,
    "norm_matmul": _norm_matmul,
    "norm_matmul_glu": _norm_matmul,
    "matmul_dense": _dense,
    "rope_store_kv": _rope_store,
    "attention": _attention,
    "rope_attention": _attention,
    "argmax_advance": _argmax,
    "top_k": _top_k,
    "hadamard_rotate": _rotation,
    "norm_rotate_quantize": _rotated,
    "glu_rotate_quantize": _rotated,
    "gated_rotate_quantize": _rotated,
    "causal_conv1d": _convolution,
    "gated_delta_rule": _delta_rule,
    "gated_rms_norm": _gated_norm,
}
