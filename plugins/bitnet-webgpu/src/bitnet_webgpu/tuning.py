"""How launches are carried out: sources, tiles, threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bitnet_hal.plugin import FEW_ROWS, DeviceType, Tuning, TuningQuery, TuningTable, table
from bitnet_hal.rounding import ceil_div

from bitnet_webgpu.compile import SUBGROUPS
from bitnet_webgpu.describe import GROUP

SPLIT_TOKENS, SPLITS = 8192, 64
"""Logits from which on a row is searched by several workgroups, and how many."""
LONGEST_LOOP = 32
"""Blocks of positions that a workgroup of a software adapter takes: llvmpipe ends loops after 65,535 turns in all."""
TILES = ((64, 256), (128, 256), (64, 128), (32, 128))
"""Rows and threads of a tile in a product of prompts."""
LARGE = 1 << 21
"""Results of a product from which on large tiles still occupy a GPU of a hundred multiprocessors."""
WIDEST = 16384
"""Columns of a row that is normed in every workgroup: 32 threads keep eight vec4 of 64 codes each, and GROUP threads
four times 16 columns."""
NARROW = 256
"""Rows of a table (gates of delta nets) up to which each is a workgroup's, where rows of activations are few."""
MOST_ROTATED, WHOLE_ROWS = 4 * GROUP, 64
"""Most columns of a rotation that is fused with its neighbours; of more rows a workgroup norms and rotates all."""
PLAIN = TuningTable(table(__file__, "tunings.toml"))


def select_tuning(query: TuningQuery) -> Tuning:
    """UnsupportedError for what is not worth it, or does not fit."""
    name = query.spec.name
    found = _CHOICES[name](query) if name in _CHOICES else PLAIN.tune(query)
    always = {"GROUP": GROUP, SUBGROUPS: int(query.info.extra.get("subgroups", 1))}
    return replace(found, private=always | dict(found.private))


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """What `select_tuning` takes, then what may be quicker elsewhere: tiles of prompts, threads that share a matrix
    row."""
    first = select_tuning(query)
    if first.variant == "tiled":
        return first.and_with([({"TILE_T": rows}, {"GROUP": group}) for rows, group in TILES])
    if _CHOICES.get(query.spec.name) is _product:
        return first.and_with([({"TILE_N": GROUP // lanes}, {"LANES": lanes}) for lanes in (8, 16, 32)])
    return [first]


def _product(query: TuningQuery) -> Tuning:
    rows, lanes = query["rows"], 8
    if rows > FEW_ROWS:
        large = rows * query["outs"] >= LARGE
        return Tuning({"TILE_N": 64, "TILE_T": 128 if large else 64, "SPLITS": 1}, "tiled")
    return Tuning({"TILE_N": GROUP // lanes, "TILE_T": query.padded_rows, "SPLITS": 1}, private={"LANES": lanes})


def _norm_product(query: TuningQuery) -> Tuning:
    width, fused = query["width"], query.spec.name == "norm_matmul_glu"
    if query["rows"] > 1:
        raise query.unsupported("several rows are faster with a launch for their norm")
    room = query.of_device("workgroup_storage")
    if width + width // 8 + 24 * GROUP > room or width > WIDEST:
        raise query.unsupported(f"{width} columns do not fit in {room} bytes of workgroup memory, or in registers")
    lanes = 4 if width <= 1024 else 8 if fused and width <= 4096 else 16 if width <= 8192 else 32
    return Tuning({"TILE_N": GROUP // lanes, "TILE_T": 1}, private={"LANES": lanes, "WIDTH": width})


def _head(query: TuningQuery) -> dict[str, int]:
    dim = query["head_dim"]
    if dim > 2 * GROUP:
        raise query.unsupported(f"heads of {dim} elements are larger than {2 * GROUP}")
    return {"GROUP": 128 if dim <= 256 else GROUP, "HEAD_DIM": dim, "ROW_WORDS": query["row_bytes"] // 4}


def _attention(query: TuningQuery) -> Tuning:
    heads, dim, blocks = query["n_heads"], query["head_dim"], query["max_blocks"]
    together = query.shared_heads(4 if dim <= 256 else 1)  # their queries and values fit in workgroup memory
    if query.info.type is DeviceType.SOFTWARE:
        splits = ceil_div(blocks, LONGEST_LOOP)
    else:
        splits = 1 if query["rows"] > FEW_ROWS or blocks == 1 else min(16, 2 * blocks)
    tile = {"TILE_N": together, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=_head(query))
    return Tuning(tile, "split", _head(query), 4 * query.padded_rows * heads * splits * (dim + 2))


def _dense(query: TuningQuery) -> Tuning:
    if query["outs"] <= NARROW and query["rows"] <= FEW_ROWS:
        return Tuning({"TILE_N": 1, "TILE_T": 1}, "narrow")
    fast = query["DTYPE"] in (1, 2) and query["width"] % 8 == 0  # f16 and bf16
    return Tuning({"TILE_N": GROUP // 8, "TILE_T": 1}, private={"FAST": int(fast)})


def _argmax(query: TuningQuery) -> Tuning:
    if query["vocab"] < SPLIT_TOKENS:
        return Tuning({"SPLITS": 1})
    return Tuning({"SPLITS": SPLITS}, "split", workspace=8 * query.padded_rows * SPLITS)


def _rotated(query: TuningQuery) -> Tuning:
    """A rotation with what stands before it and the quantizer: a thread has four columns."""
    block, norm = query["block"], "NORM" in query and query["NORM"] == 1
    private = {"GROUP": block // 4, "HADAMARD": block}
    if block > MOST_ROTATED or block % 128:
        raise query.unsupported(f"rotations of {block} columns are not fused")
    if query.spec.name == "gated_rotate_quantize":
        private["HEAD_DIM"] = dim = query["head_dim"]
        if dim % 4 or (norm and block % dim):
            raise query.unsupported(f"heads of {dim} elements are not fused")
        return Tuning({"TILE_N": 1}, private=private)
    whole = norm and query["rows"] > WHOLE_ROWS
    return Tuning({"TILE_N": query["width"] // block if whole else 1}, private=private)


_CHOICES: dict[str, Callable[[TuningQuery], Tuning]] = {
    "argmax_advance": _argmax,
    "attention": _attention,
    **dict.fromkeys(("norm_rotate_quantize", "glu_rotate_quantize", "gated_rotate_quantize"), _rotated),
    "matmul_dense": _dense,
    "matmul_ternary": _product,
    "matmul_ternary_block": _product,
    "norm_matmul": _norm_product,
    "norm_matmul_glu": _norm_product,
    "rope_attention": _attention,
    "rope_store_kv": lambda query: Tuning({"TILE_N": 1}, private=_head(query)),
}
