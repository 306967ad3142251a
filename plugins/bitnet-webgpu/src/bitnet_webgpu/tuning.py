"""The choice of a launch's source, tile and threads.

tunings.toml lists the kernels with a single tuning. The functions here compute the sizes of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from bitnet_hal.plugin import FEW_ROWS, DeviceType, Tuning, TuningQuery, TuningTable, table
from bitnet_hal.rounding import ceil_div

from bitnet_webgpu.compile import SUBGROUPS
from bitnet_webgpu.describe import GROUP

PRODUCT_LANES = 8
"""The number of threads that share a matrix row in a product of few rows."""
LARGE_PRODUCT = 1 << 21
"""The number of results of a product from which large tiles still occupy a GPU of a hundred multiprocessors."""
MAX_NORM_WIDTH = 16384
"""The maximum columns of a row that every workgroup norms.

32 threads keep eight vec4 of 64 codes each, and GROUP threads four times 16 columns.
"""
MAX_HELD_WIDTH = 16384
"""The maximum columns of a row that is quantized from registers: 16 vec4 of each of GROUP threads."""
MAX_GROUP_HEADS = 4
"""The maximum query heads of a workgroup, whose queries and values must fit in workgroup memory."""
QUERIES = 32
"""The queries of a workgroup in a prompt's attention."""
MAX_SPLITS = 16
"""The maximum number of workgroups that share the positions of one row."""
LONGEST_LOOP = 32
"""The blocks of positions per workgroup of a software adapter: llvmpipe ends loops after 65,535 iterations in total."""
NARROW_OUTS = 256
"""The maximum rows of a dense matrix (gates of delta nets) with a workgroup each, if there are few activation rows."""
SPLIT_TOKENS = 8192
"""The number of logits from which several workgroups search a row."""
ARGMAX_SPLITS = 64
MAX_ROTATED = 4 * GROUP
"""The maximum columns of a rotation that is fused with its neighbours: four columns per thread."""
WHOLE_ROWS = 64
"""The number of rows above which one workgroup norms and rotates a whole row."""
PLAIN = TuningTable(table(__file__, "tunings.toml"))


class PromptTile(NamedTuple):
    """A tile of a product of prompts: 64 outputs x `rows`, computed by `threads`."""

    rows: int
    threads: int


PROMPT_TILES = (PromptTile(64, 256), PromptTile(128, 256), PromptTile(64, 128), PromptTile(32, 128))


def select_tuning(query: TuningQuery) -> Tuning:
    """Return the tuning of a launch. Raises UnsupportedError if it does not fit, or if separate launches are faster."""
    formula = _FORMULAS.get(query.spec.name)
    tuning = formula(query) if formula else PLAIN.tune(query)
    common = {"GROUP": GROUP, SUBGROUPS: int(query.info.extra.get("subgroups", 1))}
    return replace(tuning, private=common | dict(tuning.private))


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """Return the selected tuning, then others that `bitnet tune` measures.

    These are tiles of prompts, or other numbers of threads per matrix row.
    """
    selected = select_tuning(query)
    if selected.variant == "tiled":
        return selected.and_with([({"TILE_T": tile.rows}, {"GROUP": tile.threads}) for tile in PROMPT_TILES])
    if _FORMULAS.get(query.spec.name) is _ternary:
        return selected.and_with([({"TILE_N": GROUP // lanes}, {"LANES": lanes}) for lanes in (8, 16, 32)])
    return [selected]


def _ternary(query: TuningQuery) -> Tuning:
    rows = query["rows"]
    if rows > FEW_ROWS:
        tile_t = 128 if rows * query["outs"] >= LARGE_PRODUCT else 64
        return Tuning({"TILE_N": 64, "TILE_T": tile_t, "SPLITS": 1}, "tiled")
    tile = {"TILE_N": GROUP // PRODUCT_LANES, "TILE_T": query.padded_rows, "SPLITS": 1}
    return Tuning(tile, private={"LANES": PRODUCT_LANES})


def _quantized(query: TuningQuery) -> Tuning:
    width = query["width"]
    if query["ABLOCK"] or width % 4 or width > MAX_HELD_WIDTH:
        return Tuning({})
    return Tuning({}, "held", {"WIDTH": width})


def _norm_matmul(query: TuningQuery) -> Tuning:
    width = query["width"]
    if query["rows"] > 1:
        raise query.unsupported("several rows are faster with a launch for their norm")
    available = query.of_device("workgroup_storage")
    codes_and_scales = width + width // 8
    reductions = 24 * GROUP
    if codes_and_scales + reductions > available or width > MAX_NORM_WIDTH:
        raise query.unsupported(f"{width} columns do not fit in {available} bytes of workgroup memory, or in registers")
    lanes = _norm_lanes(width)
    return Tuning({"TILE_N": GROUP // lanes, "TILE_T": 1}, private={"LANES": lanes, "WIDTH": width})


def _norm_lanes(width: int) -> int:
    """Return the threads that share a matrix row, each with eight vec4 of its codes at most."""
    if width <= 1024:
        return 4
    if width <= 4096:
        return 8
    return 16 if width <= 8192 else 32


def _head(query: TuningQuery) -> dict[str, int]:
    """Return the constants of a kernel that works on heads."""
    dim = query["head_dim"]
    if dim > 2 * GROUP:
        raise query.unsupported(f"heads of {dim} elements are larger than {2 * GROUP}")
    return {"GROUP": 128 if dim <= 256 else GROUP, "HEAD_DIM": dim, "ROW_WORDS": query["row_bytes"] // 4}


def _rope_store(query: TuningQuery) -> Tuning:
    return Tuning({"TILE_N": 1}, private=_head(query))


def _attention(query: TuningQuery) -> Tuning:
    dim = query["head_dim"]
    tiled = _tiled_attention(query)
    if tiled is not None:
        return tiled
    group_heads = query.shared_heads(MAX_GROUP_HEADS if dim <= 256 else 1)
    splits = _attention_splits(query)
    tile = {"TILE_N": group_heads, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=_head(query))
    partial_results = query.padded_rows * query["n_heads"] * splits * (dim + 2)  # values, maximum, total
    return Tuning(tile, "split", _head(query), 4 * partial_results)


def _tiled_attention(query: TuningQuery) -> Tuning | None:
    """Return the tuning of a prompt's attention on a GPU, None if its tiles do not fit.

    A workgroup has QUERIES (query head, row) pairs.
    """
    dim = query["head_dim"]
    few = query["rows"] <= FEW_ROWS
    if query.spec.name != "attention" or query.info.type is DeviceType.SOFTWARE or few or dim not in (64, 128):
        return None
    heads = query["n_heads"] // query["n_kv_heads"]
    tile_n = next(n for n in (4, 2, 1) if heads % n == 0)
    for step in (32, 16):
        if 4 * dim * QUERIES + 4 * (dim + 4) * step + 128 * step + 2048 <= query.of_device("workgroup_storage"):
            private = _head(query) | {"GROUP": 128, "STEP": step}
            return Tuning({"TILE_N": tile_n, "TILE_T": QUERIES // tile_n, "SPLITS": 1}, "tiled", private)
    return None


def _attention_splits(query: TuningQuery) -> int:
    """Return the workgroups that share the positions of a row."""
    blocks = query["max_blocks"]
    if query.info.type is DeviceType.SOFTWARE:
        return ceil_div(blocks, LONGEST_LOOP)
    if query["rows"] > FEW_ROWS or blocks == 1:
        return 1
    return min(MAX_SPLITS, 2 * blocks)


def _dense(query: TuningQuery) -> Tuning:
    if query["outs"] <= NARROW_OUTS and query["rows"] <= FEW_ROWS:
        return Tuning({"TILE_N": 1, "TILE_T": 1}, "narrow")
    f16_or_bf16 = query["DTYPE"] in (1, 2)
    fast = f16_or_bf16 and query["width"] % 8 == 0
    return Tuning({"TILE_N": GROUP // 8, "TILE_T": 1}, private={"FAST": int(fast)})


def _argmax(query: TuningQuery) -> Tuning:
    if query["vocab"] < SPLIT_TOKENS:
        return Tuning({"SPLITS": 1})
    return Tuning({"SPLITS": ARGMAX_SPLITS}, "split", workspace=8 * query.padded_rows * ARGMAX_SPLITS)


def _rotated(query: TuningQuery) -> Tuning:
    """Return the tuning of a rotation fused with the norm or gate before it and the quantizer after it.

    A thread has four columns.
    """
    block = query["block"]
    normed = "NORM" in query and query["NORM"] == 1
    if block > MAX_ROTATED or block % 128:
        raise query.unsupported(f"rotations of {block} columns are not fused")
    private = {"GROUP": block // 4, "HADAMARD": block}
    if query.spec.name == "gated_rotate_quantize":
        dim = query["head_dim"]
        if dim % 4 or (normed and block % dim):
            raise query.unsupported(f"heads of {dim} elements are not fused")
        return Tuning({"TILE_N": 1}, private=private | {"HEAD_DIM": dim})
    whole_row = normed and query["rows"] > WHOLE_ROWS
    blocks_per_group = query["width"] // block if whole_row else 1
    return Tuning({"TILE_N": blocks_per_group}, private=private)


_FORMULAS: dict[str, Callable[[TuningQuery], Tuning]] = {
    "argmax_advance": _argmax,
    "attention": _attention,
    "norm_rotate_quantize": _rotated,
    "glu_norm_quantize": _quantized,
    "glu_rotate_quantize": _rotated,
    "gated_rotate_quantize": _rotated,
    "matmul_dense": _dense,
    "matmul_ternary": _ternary,
    "matmul_ternary_block": _ternary,
    "norm_matmul": _norm_matmul,
    "norm_matmul_glu": _norm_matmul,
    "rms_norm_quantize": _quantized,
    "rope_attention": _attention,
    "rope_store_kv": _rope_store,
}
"""The functions by kernel; all other kernels are rows of tunings.toml."""
