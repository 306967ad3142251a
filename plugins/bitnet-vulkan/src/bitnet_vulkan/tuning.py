"""Which source, workgroup size and tile serves a launch, by kind of device.

Rows of a table (gpu.toml, software.toml) where these say all; here is what depends on subgroups and matrix units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bitnet_hal.kernels.catalogue import ceil_div
from bitnet_hal.plugin import FEW_ROWS, DeviceType, Tuning, TuningTable, Wanted, table

MOST_GROUP_HEADS = 8
"""Query heads of one key/value head that the split attention keeps in registers."""
MATRIX_TILES = ((64, 64, 32), (128, 64, 32), (128, 128, 64))
"""Outputs and rows of a tile on matrix units, and rows of one of its four subgroups."""
MEETING_WORDS = 9 * 32
"""Counters of meeting.glsl."""
Family = Mapping[str, Any]  # a row of families.toml, and DeviceInfo.extra
FAMILIES: dict[str, Family] = table(__file__, "families.toml")
ROWS = {name: TuningTable(table(__file__, f"{name}.toml")) for name in FAMILIES}


def choose(wanted: Wanted) -> Tuning:
    """The tuning of one launch; UnsupportedError where an optional kernel does not serve it."""
    kind = "software" if wanted.info.type is DeviceType.SOFTWARE else "gpu"
    formula = _FORMULAS.get(wanted.spec.name)
    found = formula(wanted, {**FAMILIES[kind], **wanted.info.extra}) if formula else None
    return found or ROWS[kind].tune(wanted)


def offered(wanted: Wanted) -> list[Tuning]:
    """What `choose` takes, then what may be quicker elsewhere: tiles on matrix units, lanes that share a matrix row."""
    first = choose(wanted)
    if first.variant in ("coop", "joined") and "outs" in wanted:
        return first.and_with([({"TILE_N": n, "TILE_T": t}, {"WAVE_T": wave}) for n, t, wave in MATRIX_TILES])
    if "LANES" in first.private and wanted.spec.name != "matmul_dense" and "outs" in wanted:
        return first.with_lanes(wanted.of_device("subgroups"))
    return [first]


def _lanes(wanted: Wanted, family: Family, rows: int) -> tuple[int, dict[str, int]]:
    """Outputs of a tile of subgroups, and how few rows share the lanes of a product."""
    lanes, width = min(16, family["subgroups"]), wanted["width"]
    group, rows_per = family["row"][width > 16384], 1 if width > 8192 else 4 if wanted["outs"] >= 8192 else 2
    if rows > 2 and not family["software"]:
        # activations are most of the traffic: wide lanes, two rows for each load of them
        lanes, group, rows_per = family["subgroups"], 128, 2
    return group // lanes * rows_per, {"GROUP": group, "WIDTH": width, "LANES": lanes}


def _ternary(wanted: Wanted, family: Family) -> Tuning | None:
    rows = wanted["rows"]
    if rows > FEW_ROWS and family["matrix"]:
        # as measured on an H200: the fewer tiles there are, the smaller they must be to reach all multiprocessors;
        # sums that are scaled for each 32 columns leave no registers for large ones
        tiles, blocked = ceil_div(rows, 128) * ceil_div(wanted["outs"], 128), "BLOCK" in wanted
        variant = "joined" if blocked and wanted["ABLOCK"] == 128 else "coop"
        many = tiles >= (150 if variant == "joined" else 100) and (variant == "joined" or not blocked)
        tile_n, tile_t, wave_t = MATRIX_TILES[2 if many else int(blocked)]
        return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, variant, {"GROUP": 128, "WAVE_T": wave_t})
    if rows > FEW_ROWS or not family["subgroups"]:
        return None
    tile_n, private = _lanes(wanted, family, rows)
    tile_t = min(wanted.room, 2 if family["software"] else FEW_ROWS)
    return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "few", private)


def _norm_matmul(wanted: Wanted, family: Family) -> Tuning:
    if wanted["rows"] > 1:
        raise wanted.refused("more rows are faster apart")
    tile_n, private = _lanes(wanted, family, 1)
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, private=private)


def _dense(wanted: Wanted, family: Family) -> Tuning | None:
    rows, width, wave = wanted["rows"], wanted["width"], family["subgroups"]
    if not wave or wanted["DTYPE"] != 1 or family["software"] or width % 8 or width > 8192:
        return None
    private = {"GROUP": 128, "WIDTH": width, "LANES": wave, "BATCH": 2 if rows == 1 else 4}
    return Tuning({"TILE_N": 128 // wave * 8, "TILE_T": min(8, wanted.room)}, "few", private)


def _attention(wanted: Wanted, family: Family) -> Tuning | None:
    """Workgroups share the positions of a row, where there are few."""
    dim, heads, joined = wanted["head_dim"], wanted["n_heads"] // wanted["n_kv_heads"], not wanted.spec.base
    few, wave = wanted["rows"] <= FEW_ROWS, family["subgroups"]
    if few and wave and dim % 8 == 0 and dim <= 256 and heads <= MOST_GROUP_HEADS:
        lanes = next(n for n in (32, 16, 8, 4, 2, 1) if n <= wave and dim // 8 % n == 0)
        splits, room = min(16, wanted["max_blocks"]), max(FEW_ROWS, wanted.room)
        private = {"GROUP": heads * wave, "HEADS": heads, "DIM": dim, "LANES": lanes, "ROOM": room}
        private["BATCH"] = family["loads"]
        words = wanted["n_kv_heads"] + wanted["n_heads"] * splits * (dim + 2)
        tile = {"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}
        return Tuning(tile, "" if joined else "split", private, 4 * room * words)
    if not few and not joined and family["half-matrix"] and wanted["KV"] == 1 and dim in (64, 128):
        tile_n = next(n for n in (4, 2, 1) if heads % n == 0)
        return Tuning({"TILE_N": tile_n, "TILE_T": 64 // tile_n, "SPLITS": 1}, "coop", {"GROUP": 128, "DIM": dim})
    return None


def _argmax(wanted: Wanted, family: Family) -> Tuning | None:
    if not family["subgroups"]:
        return None
    (group, batch), room = family["split"], max(FEW_ROWS, wanted.room)
    splits, private = min(32, ceil_div(wanted["vocab"], group * batch)), {"GROUP": group, "BATCH": batch, "ROOM": room}
    return Tuning({"SPLITS": splits}, "split", private, 4 * room * (4 * splits + 1))


def _layer(wanted: Wanted, family: Family) -> Tuning:
    """A workgroup for each multiprocessor."""
    wave, members = family["subgroups"], family["resident"]
    hidden, ffn, dim, kv_heads = (wanted[name] for name in ("hidden", "ffn", "head_dim", "n_kv_heads"))
    heads = wanted["n_heads"] // kv_heads
    if hidden % 4 or ffn % 4 or heads > MOST_GROUP_HEADS or dim not in (32, 64, 128, 256) or dim < wave:
        raise wanted.refused("layers of such a shape are served apart")
    group = 8 * wave if family["software"] else 512
    widest, waves = max(hidden, heads * kv_heads * dim, ffn), group // wave
    parts, fresh = 4 * waves * heads * (dim + 3), 4 * (heads + 2) * (dim + dim // wave)
    blocks = 32 * ceil_div(widest, 128) if wanted["BLOCK"] else 32
    shared = max(parts, widest + 256 + 12 * waves * heads) + fresh + blocks + 4 * heads + 16 * waves + 64
    if shared > family["shared_memory"]:
        raise wanted.refused("rows of such a width are served apart")
    # what a lane has of rows, weights, scales, keys and values shall fit in its registers: 128 of them at groups of 512
    lanes, rows = 16 if widest <= 8192 else 32, 1 if wanted["BLOCK"] else 2
    private = {"GROUP": group, "LANES": min(lanes, wave), "BATCH": 1, "ROWS": rows}
    shape = {"WIDTH": hidden, "FFN": ffn, "HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim}
    words = MEETING_WORDS + kv_heads + max(members, kv_heads) * heads * (dim + 2)
    return Tuning({"MEMBERS": members}, "resident", private | shape, 4 * words)


_FORMULAS: dict[str, Callable[[Wanted, Family], Tuning | None]] = {  # None: the table has it
    **dict.fromkeys(("attention", "rope_attention"), _attention),
    **dict.fromkeys(("matmul_ternary", "matmul_ternary_block"), _ternary),
    **dict.fromkeys(("norm_matmul", "norm_matmul_glu"), _norm_matmul),
    "argmax_advance": _argmax,
    "decoder_layer": _layer,
    "matmul_dense": _dense,
}
