"""Tunings of decoder_layer for NVIDIA GPUs of compute capability 8.0 and later, measured on an H100."""

from __future__ import annotations

from bitnet_hal.plugin import Tuning, TuningQuery
from bitnet_hal.rounding import ceil_div

from bitnet_opencl.clc.nvidia_tuning import (
    BATCH_ROWS,
    FLOAT,
    LOCAL_BYTES,
    MAX_GROUP_HEADS,
    MOST_TILE_PAIRS,
    WARP,
    partial_bytes,
)

LAYER_GROUP = 512
"""Work-items of a work-group of decoder_layer."""
MEETING_BYTES = 2048
"""Bytes of counters at the start of the workspace of decoder_layer (meeting.clh)."""
FEW_LAYER_ROWS = 4
"""The maximum rows of a layer each of whose work-groups norms all rows."""
ROUND_COST = 1.5
"""The time that a round of products takes in addition to its tiles, in tiles."""


def decoder_layer(query: TuningQuery) -> Tuning:
    """Return the tuning of decoder_layer: one work-group for each compute unit, with all shapes as constants."""
    members = query.of_device("members")
    n_heads = query["n_heads"]
    head_dim = query["head_dim"]
    hidden = query["hidden"]
    ffn = query["ffn"]
    if not members or (query["rows"] > 1 and not query.of_device("ptx")):
        raise query.unsupported("the device is not supported")
    if head_dim % 8 or hidden % 4 or ffn % 4:
        raise query.unsupported(f"head_dim {head_dim}, hidden {hidden} and ffn {ffn} must be multiples of 8, 4 and 4")
    room = query.padded_rows
    heads = query.shared_heads(MAX_GROUP_HEADS)
    octets = ceil_div(head_dim, 8)
    if octets > WARP:
        raise query.unsupported(f"heads of {head_dim} elements are not supported")
    private = {
        "GROUP": LAYER_GROUP,
        "ROOM": room,
        "KEYS": 1,
        "HIDDEN": hidden,
        "FFN": ffn,
        "N_HEADS": n_heads,
        "KV_HEADS": query["n_kv_heads"],
        "HEAD_DIM": head_dim,
        "HEADS": heads,
    }
    head_groups = room * n_heads // heads
    splits = max(1, members // head_groups)
    workspace = MEETING_BYTES + partial_bytes(head_groups, splits, heads, octets)
    if room == 1:
        variant = ""
        private |= _layer_of_one(query, heads, octets)
    elif room <= FEW_LAYER_ROWS and not query["BLOCK"] and _few_fit(query, heads):
        variant = "few"
        private |= _layer_of_few(query, octets, members)
    else:
        variant = "batch"
        private |= _layer_of_batch(query, octets, members) | {"CODES_AT": workspace // FLOAT}
        scales = _widest(query) // 32 if query["ABLOCK"] else 1
        workspace += max(room, 8) * (ceil_div(_widest(query), 256) * 256 + 2 * FLOAT * scales)
    return Tuning({"MEMBERS": members}, variant, private, workspace)


def _layer_of_one(query: TuningQuery, heads: int, octets: int) -> dict[str, int]:
    """Return the constants of decoder_layer for one row.

    heads: query heads per work-group.
    """
    widest = _widest(query)
    lanes = 16 if widest <= 8192 else 32  # a lane's part of the row must fit in its registers
    row_codes = widest * 3 // 2 if query["BLOCK"] else widest
    if octets > lanes or _layer_local_bytes(query, heads, row_codes) > LOCAL_BYTES:
        raise query.unsupported(f"heads of {query['head_dim']} elements with {widest} columns are not supported")
    return {"LANES": lanes, "UP_ROWS": 1 if query["BLOCK"] else 2}


def _few_fit(query: TuningQuery, heads: int) -> bool:
    """Return whether the codes of all rows and their sums fit in local memory.

    heads: query heads per work-group.
    """
    room = query.padded_rows
    scales_and_parts = 2 * FLOAT * room + FLOAT * LAYER_GROUP // WARP * room * 16
    return _layer_local_bytes(query, heads, room * (_widest(query) + 32)) + scales_and_parts <= LOCAL_BYTES


def _layer_of_few(query: TuningQuery, octets: int, members: int) -> dict[str, int]:
    """Return the constants of decoder_layer for two to four rows, all of which each work-group norms.

    A work-group has SPLIT_* tiles of 16 rows of each matrix, or two rounds of eight.
    """

    def split(tiles: int) -> int:
        return next((n for n in (1, 2, 4) if n * members >= tiles), 8)

    outs = (query["n_heads"] + 2 * query["n_kv_heads"]) * query["head_dim"]
    return {
        "LANES": 1 << (octets - 1).bit_length(),
        "SPLIT_QKV": split(ceil_div(outs, 16)),
        "SPLIT_X": split(ceil_div(query["hidden"], 16)),
        "SPLIT_UP": split(ceil_div(query["ffn"], 8)),
        "MOST_PAIRS": MOST_TILE_PAIRS,
    }


def _layer_of_batch(query: TuningQuery, octets: int, members: int) -> dict[str, int]:
    """Return the constants of decoder_layer for a batch, TILE_T rows of which are multiplied at a time.

    A work-group has SPLIT_* tiles of 16 rows of each matrix at a time.
    """
    if query["rows"] > BATCH_ROWS:
        raise query.unsupported(f"{query['rows']} rows are not supported")
    outs = (query["n_heads"] + 2 * query["n_kv_heads"]) * query["head_dim"]
    return {
        "LANES": 1 << (octets - 1).bit_length(),
        "TILE_T": min(32, max(8, query.padded_rows)),
        "SPLIT_QKV": _tiles_at_once(ceil_div(outs, 16), members),
        "SPLIT_X": _tiles_at_once(ceil_div(query["hidden"], 16), members),
        "SPLIT_UP": _tiles_at_once(ceil_div(query["ffn"], 8), members),
        "MOST_PAIRS": 1 if query["BLOCK"] else MOST_TILE_PAIRS,
    }


def _tiles_at_once(tiles: int, members: int) -> int:
    """Return the tiles of a matrix that a work-group multiplies at a time, in few rounds and with few idle groups."""

    def cost(at_once: int) -> float:
        rounds = ceil_div(tiles, at_once * members)
        return rounds * (at_once + ROUND_COST)

    return min((1, 2, 4, 8), key=cost)


def _widest(query: TuningQuery) -> int:
    """Return the padded columns of a layer's widest row."""
    columns = query["hidden"], query["n_heads"] * query["head_dim"], query["ffn"]
    return max(ceil_div(one, 128) * 128 for one in columns)


def _layer_local_bytes(query: TuningQuery, heads: int, row_codes: int) -> int:
    """Return the bytes of local memory of decoder_layer.

    heads: query heads per work-group. row_codes: bytes of the codes of rows.
    """
    head_dim = query["head_dim"]
    warps = LAYER_GROUP // WARP
    attention_sums = warps * 4 * FLOAT * heads * (head_dim // 4 + 1)
    new_heads = FLOAT * (heads + 2) * head_dim  # rotated queries, key and value of the row
    reductions = 7 * FLOAT * warps
    return max(attention_sums, row_codes) + new_heads + reductions + 128
