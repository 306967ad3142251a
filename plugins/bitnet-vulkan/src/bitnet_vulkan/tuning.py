"""Which source, workgroup size and tile serves a launch, by kind of device.

Rows of a table (gpu.toml, software.toml) where these say all; here is what depends on subgroups and matrix units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bitnet_hal.plugin import FEW_ROWS, DeviceType, Tuning, TuningQuery, TuningTable, table
from bitnet_hal.rounding import ceil_div

MOST_GROUP_HEADS = 8
"""Query heads of one key/value head that the split attention keeps in registers."""
MATRIX_TILES = ((64, 64, 32), (128, 64, 32), (128, 128, 64))
"""Outputs and rows of a tile on matrix units, and rows of one of its four subgroups."""
NARROW = 256
"""Rows of a table (gates of delta nets) up to which each is a workgroup's, where rows of activations are few."""
MOST_ROTATED, WHOLE_ROWS = 1024, 64
"""Most columns of a rotation that is fused with its neighbours; of more rows a workgroup norms and rotates all."""
MEETING_WORDS = 9 * 32
"""Counters of meeting.glsl."""
Family = Mapping[str, Any]  # a row of families.toml, and DeviceInfo.extra
FAMILIES: dict[str, Family] = table(__file__, "families.toml")
ROWS = {name: TuningTable(table(__file__, f"{name}.toml")) for name in FAMILIES}


def select_tuning(query: TuningQuery) -> Tuning:
    """The tuning of one launch; UnsupportedError where an optional kernel does not serve it."""
    kind = "software" if query.info.type is DeviceType.SOFTWARE else "gpu"
    formula = _FORMULAS.get(query.spec.name)
    found = formula(query, {**FAMILIES[kind], **query.info.extra}) if formula else None
    return found or ROWS[kind].tune(query)


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """What `select_tuning` takes, then what may be quicker elsewhere: tiles on matrix units, lanes that share a matrix
    row."""
    first = select_tuning(query)
    if first.variant in ("coop", "fused") and "outs" in query:
        return first.and_with([({"TILE_N": n, "TILE_T": t}, {"WAVE_T": wave}) for n, t, wave in MATRIX_TILES])
    if "LANES" in first.private and query.spec.name != "matmul_dense" and "outs" in query:
        return first.with_lanes(query.of_device("subgroups"))
    return [first]


def _lanes(query: TuningQuery, family: Family, rows: int) -> tuple[int, dict[str, int]]:
    """Outputs of a tile of subgroups, and how few rows share the lanes of a product."""
    lanes, width = min(16, family["subgroups"]), query["width"]
    group, rows_per = family["row"][width > 16384], 1 if width > 8192 else 4 if query["outs"] >= 8192 else 2
    if rows > 2 and not family["software"]:
        # activations are most of the traffic: wide lanes, two rows for each load of them
        lanes, group, rows_per = family["subgroups"], 128, 2
    return group // lanes * rows_per, {"GROUP": group, "WIDTH": width, "LANES": lanes}


def _ternary(query: TuningQuery, family: Family) -> Tuning | None:
    rows = query["rows"]
    if rows > FEW_ROWS and family["matrix"]:
        # as measured on an H200: the fewer tiles there are, the smaller they must be to reach all multiprocessors;
        # sums that are scaled for each 32 columns leave no registers for large ones
        tiles, blocked = ceil_div(rows, 128) * ceil_div(query["outs"], 128), "BLOCK" in query
        variant = "fused" if blocked and query["ABLOCK"] == 128 else "coop"
        many = tiles >= (150 if variant == "fused" else 100) and (variant == "fused" or not blocked)
        tile_n, tile_t, wave_t = MATRIX_TILES[2 if many else int(blocked)]
        return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, variant, {"GROUP": 128, "WAVE_T": wave_t})
    if rows > FEW_ROWS or not family["subgroups"]:
        return None
    tile_n, private = _lanes(query, family, rows)
    tile_t = min(query.padded_rows, 2 if family["software"] else FEW_ROWS)
    return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "few", private)


def _norm_matmul(query: TuningQuery, family: Family) -> Tuning:
    if query["rows"] > 1:
        raise query.unsupported("more rows are faster apart")
    tile_n, private = _lanes(query, family, 1)
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, private=private)


def _dense(query: TuningQuery, family: Family) -> Tuning | None:
    rows, width, wave = query["rows"], query["width"], family["subgroups"]
    if query["outs"] <= NARROW and rows <= FEW_ROWS and not family["software"]:
        return Tuning({"TILE_N": 1, "TILE_T": query.padded_rows}, private={"GROUP": 256})
    if not wave or query["DTYPE"] != 1 or family["software"] or width % 8 or width > 8192:
        return None
    private = {"GROUP": 128, "WIDTH": width, "LANES": wave, "BATCH": 2 if rows == 1 else 4}
    return Tuning({"TILE_N": 128 // wave * 8, "TILE_T": min(8, query.padded_rows)}, "few", private)


def _attention(query: TuningQuery, family: Family) -> Tuning | None:
    """Workgroups share the positions of a row, where there are few."""
    dim, heads, fused = query["head_dim"], query["n_heads"] // query["n_kv_heads"], not query.spec.base
    few, wave = query["rows"] <= FEW_ROWS, family["subgroups"]
    if few and wave and dim % 8 == 0 and dim <= 256 and heads <= MOST_GROUP_HEADS:
        lanes = next(n for n in (32, 16, 8, 4, 2, 1) if n <= wave and dim // 8 % n == 0)
        splits, room = min(16, query["max_blocks"]), max(FEW_ROWS, query.padded_rows)
        private = {"GROUP": heads * wave, "HEADS": heads, "DIM": dim, "LANES": lanes, "ROOM": room}
        private["BATCH"] = family["loads"]
        words = query["n_kv_heads"] + query["n_heads"] * splits * (dim + 2)
        tile = {"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}
        return Tuning(tile, "" if fused else "split", private, 4 * room * words)
    if not few and not fused and family["half-matrix"] and query["KV"] == 1 and dim in (64, 128):
        tile_n = next(n for n in (4, 2, 1) if heads % n == 0)
        return Tuning({"TILE_N": tile_n, "TILE_T": 64 // tile_n, "SPLITS": 1}, "coop", {"GROUP": 128, "DIM": dim})
    return None


def _argmax(query: TuningQuery, family: Family) -> Tuning | None:
    if not family["subgroups"]:
        return None
    (group, batch), room = family["split"], max(FEW_ROWS, query.padded_rows)
    splits, private = min(32, ceil_div(query["vocab"], group * batch)), {"GROUP": group, "BATCH": batch, "ROOM": room}
    return Tuning({"SPLITS": splits}, "split", private, 4 * room * (4 * splits + 1))


def _layer(query: TuningQuery, family: Family) -> Tuning:
    """A workgroup for each multiprocessor."""
    wave, members = family["subgroups"], family["resident"]
    hidden, ffn, dim, kv_heads = (query[name] for name in ("hidden", "ffn", "head_dim", "n_kv_heads"))
    heads = query["n_heads"] // kv_heads
    if hidden % 4 or ffn % 4 or heads > MOST_GROUP_HEADS or dim not in (32, 64, 128, 256) or dim < wave:
        raise query.unsupported("layers of such a shape are served apart")
    group = 8 * wave if family["software"] else 512
    widest, waves = max(hidden, heads * kv_heads * dim, ffn), group // wave
    parts, fresh = 4 * waves * heads * (dim + 3), 4 * (heads + 2) * (dim + dim // wave)
    blocks = 32 * ceil_div(widest, 128) if query["BLOCK"] else 32
    shared = max(parts, widest + 256 + 12 * waves * heads) + fresh + blocks + 4 * heads + 16 * waves + 64
    if shared > family["shared_memory"]:
        raise query.unsupported("rows of such a width are served apart")
    # what a lane has of rows, weights, scales, keys and values shall fit in its registers: 128 of them at groups of 512
    lanes, rows = 16 if widest <= 8192 else 32, 1 if query["BLOCK"] else 2
    private = {"GROUP": group, "LANES": min(lanes, wave), "BATCH": 1, "ROWS": rows}
    shape = {"WIDTH": hidden, "FFN": ffn, "HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim}
    words = MEETING_WORDS + kv_heads + max(members, kv_heads) * heads * (dim + 2)
    return Tuning({"MEMBERS": members}, "resident", private | shape, 4 * words)


def _rotated(query: TuningQuery, family: Family) -> Tuning:
    """A rotation with what stands before it and the quantizer: an invocation has four columns."""
    block, norm = query["block"], "NORM" in query and query["NORM"] == 1
    private = {"GROUP": block // 4, "WIDTH": block}
    if block > MOST_ROTATED or block % 128 or private["GROUP"] < family["subgroups"]:
        raise query.unsupported(f"rotations of {block} columns are not fused")
    if query.spec.name == "gated_rotate_quantize":
        private["DIM"] = dim = query["head_dim"]
        if dim % 4 or (norm and block % dim):
            raise query.unsupported(f"heads of {dim} elements are not fused")
        return Tuning({"TILE_N": 1}, private=private)
    whole = norm and query["rows"] > WHOLE_ROWS
    return Tuning({"TILE_N": query["width"] // block if whole else 1}, private=private)


_FORMULAS: dict[str, Callable[[TuningQuery, Family], Tuning | None]] = {  # None: the table has it
    **dict.fromkeys(("attention", "rope_attention"), _attention),
    **dict.fromkeys(("matmul_ternary", "matmul_ternary_block"), _ternary),
    **dict.fromkeys(("norm_matmul", "norm_matmul_glu"), _norm_matmul),
    **dict.fromkeys(("norm_rotate_quantize", "glu_rotate_quantize", "gated_rotate_quantize"), _rotated),
    "argmax_advance": _argmax,
    "decoder_layer": _layer,
    "matmul_dense": _dense,
}
