"""How NVIDIA's GPUs of compute capability 8.0 and later want each launch; constants are what was measured on an H200.

A device without tensor cores (`ptx`) gets what needs none of their instructions, so that tests can run it anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.plugin import FEW_ROWS, Tuning, TuningQuery
from bitnet_hal.rounding import ceil_div

MOST_SPLITS = 32
"""Parts of the positions that a row's attention is split into."""
JOINED_ROWS = 2
"""Up to this many rows a norm in every group costs less than a launch of its own."""
NARROW = 256
"""Rows of a table up to which each is a group's, where rows of activations are few."""
LANES, HEADS = 32, 4
"""Of a warp. Query heads of a group, at most, which share a key/value head."""
LOCAL_BYTES = 49152
"""Of local memory that a group may have."""
MEETING_BYTES = 2048
"""Of decoder_layer's workspace, before what attention hands on (meeting.clh)."""


def _quantize(query: TuningQuery) -> Tuning:
    share = {} if query["ABLOCK"] else {"SHARE": ceil_div(query["width"], 512)}
    return Tuning(private={"GROUP": 512, **share})


def _argmax(query: TuningQuery) -> Tuning:
    rows, splits = query["rows"], min(256, ceil_div(query["vocab"], 2048))
    if splits == 1:
        return Tuning({"SPLITS": 1}, private={"GROUP": 1024})
    return Tuning({"SPLITS": splits}, "split", {"GROUP": 256}, 4 * rows * (1 + 2 * splits))


def _products(query: TuningQuery) -> Tuning:
    """Ternary products, of one scale a row or of blocks; enough loads on their way without too many groups."""
    rows, outs, width = query["rows"], query["outs"], query["width"]
    if rows > FEW_ROWS and query.of_device("ptx"):
        tile_n = 64 if ceil_div(outs, 128) * ceil_div(rows, 64) < 2 * query.of_device("compute_units") else 128
        return Tuning({"TILE_N": tile_n, "TILE_T": 64, "SPLITS": 1}, "mma", {"GROUP": 128})
    blocks = "BLOCK" in query
    lanes, depth = (16, 3) if blocks or outs > 8192 else (32, 4)
    tile = {"TILE_N": 256 // lanes, "TILE_T": min(query.padded_rows, FEW_ROWS), "SPLITS": 1}
    private = {"GROUP": 128, "LANES": lanes}
    if not blocks:
        depth = min(depth, ceil_div(width // 64, lanes)) if width >= 1024 else 1
        private |= {"DEPTH": depth, **({"WIDTH": width} if width >= 1024 else {})}
    return Tuning(tile, private=private)


def _dense(query: TuningQuery) -> Tuning:
    width = query["width"]
    if query["outs"] <= NARROW and query["rows"] <= FEW_ROWS:
        return Tuning({"TILE_N": 1, "TILE_T": query.padded_rows}, "narrow", {"GROUP": 256})
    private = {"GROUP": 128, "LANES": LANES, "ROWS": 2, "ALIGNED": int(width % 8 == 0)}
    private |= {"WIDTH": width} if width >= 1024 else {}
    return Tuning({"TILE_N": 8, "TILE_T": min(query.padded_rows, 4)}, private=private)


def _attention(query: TuningQuery) -> Tuning:
    head_dim = query["head_dim"]
    if query.of_device("ptx") and query["rows"] > FEW_ROWS and query["KV"] == 1 and head_dim in (64, 128):
        heads = query.shared_heads(HEADS)
        tile = {"TILE_N": heads, "TILE_T": 16 * max(1, 4 // heads), "SPLITS": 1}
        return Tuning(tile, "mma", {"GROUP": 2 * heads * tile["TILE_T"], "HEAD_DIM": head_dim})
    if head_dim <= 8 * LANES:
        return _teams(query, "split")
    private = {"GROUP": 256, "LANES": 8, "CHUNK": 256, "SPREAD": 256, "OWNED": ceil_div(head_dim, 256)}
    return Tuning({"TILE_N": 1, "TILE_T": 1, "SPLITS": 1}, private=private)


def _parts(groups: int, splits: int, heads: int, active: int) -> int:
    """Bytes of what groups hand to each other in attend.clh."""
    return 16 * (ceil_div(groups, 4) + groups * splits * heads * (2 * active + 1))


def _teams(query: TuningQuery, variant: str = "") -> Tuning:
    """attend.clh: teams of lanes, and where rows are few the positions shared out to groups."""
    head_dim = query["head_dim"]
    active = ceil_div(head_dim, 8)
    if active > LANES:
        raise query.unsupported(f"it is not served for heads of {head_dim} elements")
    heads = query.shared_heads(HEADS)
    groups = query.padded_rows * (query["n_heads"] // heads)  # so that prompts of any length share few programs
    splits = min(MOST_SPLITS, ceil_div(2 * query.of_device("compute_units"), groups)) if query.of_device("ptx") else 1
    workspace = _parts(groups, splits, heads, active) if splits > 1 else 0
    team = {"LANES": 1 << (active - 1).bit_length(), "HEAD_DIM": head_dim, "KEYS": 2, "HEADS": heads}
    private = {"GROUP": 128, "GROUPS": groups if splits > 1 else 1, **team}
    return Tuning({"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}, variant, private, workspace)


def _norm_matmul(query: TuningQuery) -> Tuning:
    """Enough groups for all compute units, but not many more, as each does the norm again."""
    width, outs = query["width"], query["outs"]
    if query["rows"] > JOINED_ROWS:
        raise query.unsupported(f"it is not served for {query['rows']} rows")
    group, lanes = 256, 16 if width <= 4096 else 32
    per_set = 2 if outs * lanes > 2 * query.of_device("compute_units") * group else 1
    if width * (1.5 if query["BLOCK"] else 1) + 12 * group > LOCAL_BYTES:
        raise query.unsupported(f"it is not served for {width} columns")
    tile = {"TILE_N": group // lanes * per_set, "TILE_T": 1}
    return Tuning(tile, private={"GROUP": group, "LANES": lanes, "COLUMNS": query["columns"], "WIDTH": width})


def _layer(query: TuningQuery) -> Tuning:
    """decoder_layer: a group for each compute unit; shapes are constants."""
    members, block = query.of_device("members"), query["BLOCK"]
    heads, kv_heads, dim, hidden, ffn = (query[n] for n in ("n_heads", "n_kv_heads", "head_dim", "hidden", "ffn"))
    if not members or dim % 8 or hidden % 4 or ffn % 4:
        raise query.unsupported("it is not served for such sizes" if members else "it is not served for this device")
    group, at_once, active = 512, query.shared_heads(HEADS), ceil_div(dim, 8)
    widest = max(ceil_div(size, 128) * 128 for size in (hidden, heads * dim, ffn))
    lanes = 16 if widest <= 8192 else 32  # rows of a lane shall fit in its registers
    sums = group // 32 * 16 * at_once * (dim // 4 + 1)
    codes = widest * 3 // 2 if block else widest
    if active > lanes or max(sums, codes) + 4 * (at_once + 2) * dim + 12 * group // 32 + 128 > LOCAL_BYTES:
        raise query.unsupported(f"it is not served for heads of {dim} elements and {widest} columns")
    groups = heads // at_once
    shape = {"HIDDEN": hidden, "FFN": ffn, "N_HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": dim, "HEADS": at_once}
    work = {"GROUP": group, "LANES": lanes, "KEYS": 1, "UP_ROWS": 1 if block else 2}
    workspace = MEETING_BYTES + _parts(groups, max(1, members // groups), at_once, active)
    return Tuning({"MEMBERS": members}, "", {**shape, **work}, workspace)


FORMULAS: dict[str, Callable[[TuningQuery], Tuning]] = {
    "rms_norm_quantize": _quantize,
    "glu_norm_quantize": _quantize,
    "argmax_advance": _argmax,
    "matmul_ternary": _products,
    "matmul_ternary_block": _products,
    "matmul_dense": _dense,
    "attention": _attention,
    "rope_attention": _teams,
    "norm_matmul": _norm_matmul,
    "norm_matmul_glu": _norm_matmul,
    "decoder_layer": _layer,
}
