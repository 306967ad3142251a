"""Choice of the kernel variant, workgroup size and tile of a launch, by kind of device.

gpu.toml and software.toml list the launches whose sizes need no computation. The functions here compute those that
depend on subgroups, cooperative matrices or shared memory; one that returns None leaves the launch to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bitnet_hal.plugin import FEW_ROWS, DeviceType, Tuning, TuningQuery, TuningTable, table
from bitnet_hal.rounding import ceil_div

MAX_GROUP_HEADS = 8
"""Query heads per key/value head up to which the split attention keeps all of them in registers."""
MAX_SPLITS = 16
"""Most workgroups that share the positions of one row."""
MAX_FEW_WIDTH = 8192
"""Columns up to which a lane holds its part of a dense row, or of a row with scales, in registers."""
NORM_WIDE = 16384
"""Columns above which a norm takes the second size of `norm_group` (families.toml)."""
BATCH_ROWS = 64
"""Rows up to which products and attention are those of a batch, not of a prompt."""
MOST_ATTENTION_GROUPS = 512
"""Workgroups that attention of a batch's rows is split into, if no row is in more than MAX_SPLITS of them."""
NARROW_OUTS = 256
"""Rows of a dense matrix (the gates of delta nets) up to which each gets a workgroup, if there are few activation
rows."""
MAX_ROTATED = 1024
"""Most columns of a rotation that is fused with its neighbours."""
WHOLE_ROWS = 64
"""Rows above which one workgroup norms and rotates a whole row."""
MEETING_WORDS = 9 * 32
"""u32 counters at the start of the workspace of decoder_layer (meeting.glsl)."""
FLOAT = 4
"""Bytes of an f32 or u32."""

Family = Mapping[str, Any]
"""A row of families.toml, and DeviceInfo.extra."""
FAMILIES: dict[str, Family] = table(__file__, "families.toml")
TABLES = {name: TuningTable(table(__file__, f"{name}.toml")) for name in FAMILIES}


class MatrixTile(NamedTuple):
    """Tile of a workgroup on cooperative matrices: outputs x activation rows. Each of its four subgroups computes
    `wave_rows` of the rows."""

    outs: int
    rows: int
    wave_rows: int


SMALL_TILE = MatrixTile(64, 64, 32)
MEDIUM_TILE = MatrixTile(128, 64, 32)
LARGE_TILE = MatrixTile(128, 128, 64)
MATRIX_WAVE = 32
"""Invocations of a subgroup on cooperative matrices."""
MATRIX_GROUP = 128
"""Invocations of a workgroup on cooperative matrices: four subgroups of 32."""


def select_tuning(query: TuningQuery) -> Tuning:
    """Return the tuning of one launch. Raises UnsupportedError if the device does not run this launch of an optional
    kernel."""
    kind = "software" if query.info.type is DeviceType.SOFTWARE else "gpu"
    formula = _FORMULAS.get(query.spec.name)
    tuning = formula(query, {**FAMILIES[kind], **query.info.extra}) if formula else None
    return tuning or TABLES[kind].tune(query)


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """Return the selected tuning, then others that `bitnet tune` measures: tiles of cooperative matrices, or other
    numbers of lanes per matrix row."""
    selected = select_tuning(query)
    if "outs" not in query:
        return [selected]
    if selected.variant in ("coop", "fused"):
        tiles = (SMALL_TILE, MEDIUM_TILE, LARGE_TILE)
        changes = [({"TILE_N": tile.outs, "TILE_T": tile.rows}, {"WAVE_T": tile.wave_rows}) for tile in tiles]
        return selected.and_with(changes)
    if "LANES" in selected.private and query.spec.name != "matmul_dense":
        return selected.with_lanes(query.of_device("subgroups"))
    return [selected]


def _lanes(query: TuningQuery, family: Family, rows: int) -> tuple[int, dict[str, int]]:
    """Return (TILE_N, constants) of a ternary product of few rows, in which LANES neighbours share a matrix row."""
    width = query["width"]
    if rows > 2 and not family["software"]:
        # activations are most of the traffic: a whole subgroup per matrix row, two matrix rows per load of activations
        lanes = family["subgroups"]
        group = 128
        matrix_rows_per_lane = 2
    else:
        lanes = min(16, family["subgroups"])
        normal_group, wide_group = family["norm_group"]
        group = wide_group if width > NORM_WIDE else normal_group
        if width > MAX_FEW_WIDTH:
            matrix_rows_per_lane = 1
        elif query["outs"] >= 8192:
            matrix_rows_per_lane = 4
        else:
            matrix_rows_per_lane = 2
    tile_n = group // lanes * matrix_rows_per_lane
    return tile_n, {"GROUP": group, "WIDTH": width, "LANES": lanes}


def _ternary(query: TuningQuery, family: Family) -> Tuning | None:
    rows = query["rows"]
    if 1 < rows <= BATCH_ROWS and family["matrix"]:
        return _batch_product(query)
    if rows > FEW_ROWS:
        return _matrix_product(query) if family["matrix"] else None
    if not family["subgroups"]:
        return None
    tile_n, private = _lanes(query, family, rows)
    max_rows = 2 if family["software"] else FEW_ROWS
    tile_t = min(query.padded_rows, max_rows)
    return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "few", private)


def _batch_product(query: TuningQuery) -> Tuning:
    """Return the tuning of a ternary product of a batch's rows on cooperative matrices: narrow tiles with many
    subgroups along the columns, as there are few rows to have work for all multiprocessors."""
    tile_t = 16 if query["rows"] <= 16 else 32
    wide = query["outs"] >= 8192
    waves = 4 if wide or tile_t == 32 else 8
    tile_n = 32 if wide else 16
    return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "batch", {"GROUP": MATRIX_WAVE * waves})


def _matrix_product(query: TuningQuery) -> Tuning:
    """Return the tuning of a prompt's ternary product on cooperative matrices, as measured on an H200.

    The fewer tiles a launch has, the smaller they must be to occupy all multiprocessors. Sums that are scaled for each
    32 columns (BLOCK without ABLOCK 128) leave no registers for the large tile.
    """
    large_tiles = ceil_div(query["rows"], LARGE_TILE.rows) * ceil_div(query["outs"], LARGE_TILE.outs)
    variant = "coop"
    if "BLOCK" not in query:
        tile = LARGE_TILE if large_tiles >= 100 else SMALL_TILE
    elif query["ABLOCK"] == 128:
        variant = "fused"
        tile = LARGE_TILE if large_tiles >= 150 else MEDIUM_TILE
    else:
        tile = MEDIUM_TILE
    private = {"GROUP": MATRIX_GROUP, "WAVE_T": tile.wave_rows}
    return Tuning({"TILE_N": tile.outs, "TILE_T": tile.rows, "SPLITS": 1}, variant, private)


def _norm_matmul(query: TuningQuery, family: Family) -> Tuning:
    if query["rows"] > 1:
        raise query.unsupported("several rows are faster with a launch for their norm")
    tile_n, private = _lanes(query, family, 1)
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, private=private)


def _dense(query: TuningQuery, family: Family) -> Tuning | None:
    rows = query["rows"]
    width = query["width"]
    wave = family["subgroups"]
    if query["outs"] <= NARROW_OUTS and rows <= FEW_ROWS and not family["software"]:
        return Tuning({"TILE_N": 1, "TILE_T": query.padded_rows}, private={"GROUP": 256})
    halves = query["DTYPE"] == 1
    if family["half-matrix"] and halves and width % 64 == 0 and 1 < rows <= BATCH_ROWS:
        return Tuning({"TILE_N": 256, "TILE_T": 16 if rows <= 16 else 32}, "batch", {"GROUP": 256})
    fits = width % 8 == 0 and width <= MAX_FEW_WIDTH
    if not wave or not halves or not fits or family["software"]:
        return None
    group = 128
    batch = 2 if rows == 1 else 4
    private = {"GROUP": group, "WIDTH": width, "LANES": wave, "BATCH": batch}
    return Tuning({"TILE_N": group // wave * 8, "TILE_T": min(8, query.padded_rows)}, "few", private)


def _attention(query: TuningQuery, family: Family) -> Tuning | None:
    decodes = query.spec.name == "rope_attention" and query["rows"] <= BATCH_ROWS
    if query["rows"] > FEW_ROWS and not decodes:
        return _prompt_attention(query, family)
    dim = query["head_dim"]
    wave = family["subgroups"]
    heads = query["n_heads"] // query["n_kv_heads"]  # query heads per key/value head, a subgroup each
    if not wave or dim % 8 or dim > 256 or heads > MAX_GROUP_HEADS:
        return None
    octets = dim // 8  # a lane loads 8 elements of a key or value at once
    lanes = next(n for n in (32, 16, 8, 4, 2, 1) if n <= wave and octets % n == 0)
    splits = min(MAX_SPLITS, query["max_blocks"])
    if decodes and query["rows"] > 1:
        workgroups = query.padded_rows * query["n_kv_heads"]
        splits = min(splits, max(2, ceil_div(MOST_ATTENTION_GROUPS, workgroups)))
    rows = max(FEW_ROWS, query.padded_rows)
    private = {
        "GROUP": heads * wave,
        "HEADS": heads,
        "DIM": dim,
        "LANES": lanes,
        "ROOM": rows,
        "BATCH": family["kv_loads"],
    }
    counters = query["n_kv_heads"]
    partial_results = query["n_heads"] * splits * (dim + 2)  # weighted values, maximum and total of each split
    workspace = FLOAT * rows * (counters + partial_results)
    variant = "split" if query.spec.name == "attention" else ""
    return Tuning({"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}, variant, private, workspace)


def _prompt_attention(query: TuningQuery, family: Family) -> Tuning | None:
    """Return the tuning of a prompt's attention on cooperative matrices of halves: 64 (query head, row) pairs per
    workgroup."""
    dim = query["head_dim"]
    halves = query["KV"] == 1
    if query.spec.name != "attention" or not family["half-matrix"] or not halves or dim not in (64, 128):
        return None
    heads = query["n_heads"] // query["n_kv_heads"]
    tile_n = next(n for n in (4, 2, 1) if heads % n == 0)
    return Tuning({"TILE_N": tile_n, "TILE_T": 64 // tile_n, "SPLITS": 1}, "coop", {"GROUP": MATRIX_GROUP, "DIM": dim})


def _argmax(query: TuningQuery, family: Family) -> Tuning | None:
    if not family["subgroups"]:
        return None
    group = family["argmax_group"]
    batch = family["argmax_loads"]
    rows = max(FEW_ROWS, query.padded_rows)
    splits = min(32, ceil_div(query["vocab"], group * batch))
    candidates = 4 * splits  # a uvec4 for each workgroup
    counters = 1
    workspace = FLOAT * rows * (candidates + counters)
    return Tuning({"SPLITS": splits}, "split", {"GROUP": group, "BATCH": batch, "ROOM": rows}, workspace)


def _layer(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of decoder_layer: one workgroup for each multiprocessor, all of which run at the same time."""
    wave = family["subgroups"]
    hidden = query["hidden"]
    ffn = query["ffn"]
    dim = query["head_dim"]
    kv_heads = query["n_kv_heads"]
    heads = query["n_heads"] // kv_heads
    if hidden % 4 or ffn % 4 or heads > MAX_GROUP_HEADS or dim not in (32, 64, 128, 256) or dim < wave:
        raise query.unsupported("layers of such a shape run as separate launches")
    group = 8 * wave if family["software"] else 512
    widest = max(hidden, heads * kv_heads * dim, ffn)
    if _layer_shared_bytes(query, heads, widest, group, wave) > family["shared_memory"]:
        raise query.unsupported("rows of such a width run as separate launches")
    # a lane's part of rows, weights, scales, keys and values must fit in its 128 registers (workgroups of 512)
    lanes = 16 if widest <= MAX_FEW_WIDTH else 32
    private = {
        "GROUP": group,
        "LANES": min(lanes, wave),
        "BATCH": 1,
        "ROWS": 1 if query["BLOCK"] else 2,
        "WIDTH": hidden,
        "FFN": ffn,
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
    }
    members = family["resident"]
    counters = MEETING_WORDS + kv_heads
    partial_results = max(members, kv_heads) * heads * (dim + 2)
    return Tuning({"MEMBERS": members}, "resident", private, FLOAT * (counters + partial_results))


def _layer_shared_bytes(query: TuningQuery, heads: int, widest: int, group: int, wave: int) -> int:
    """Return the bytes of shared memory of decoder_layer (decoder_layer_resident.comp, layer_attention.glsl).

    heads: query heads per key/value head. widest: columns of the widest row. group, wave: invocations of a workgroup
    and of a subgroup.
    """
    dim = query["head_dim"]
    waves = group // wave
    attention_parts = FLOAT * waves * heads * (dim + 3)
    row_codes = widest + 256 + 3 * FLOAT * waves * heads
    new_heads = (
        FLOAT * (heads + 2) * (dim + dim // wave)
    )  # the row's rotated queries, key and value, and sums of squares
    scales = 32 * ceil_div(widest, 128) if query["BLOCK"] else 32
    reductions = FLOAT * heads + 4 * FLOAT * waves + 64
    return max(attention_parts, row_codes) + new_heads + scales + reductions


def _rotated(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of a rotation fused with the norm or gate before it and the quantizer after it. An invocation
    has four columns."""
    block = query["block"]
    group = block // 4
    normed = "NORM" in query and query["NORM"] == 1
    if block > MAX_ROTATED or block % 128 or group < family["subgroups"]:
        raise query.unsupported(f"rotations of {block} columns are not fused")
    private = {"GROUP": group, "WIDTH": block}
    if query.spec.name == "gated_rotate_quantize":
        dim = query["head_dim"]
        if dim % 4 or (normed and block % dim):
            raise query.unsupported(f"heads of {dim} elements are not fused")
        return Tuning({"TILE_N": 1}, private=private | {"DIM": dim})
    whole_row = normed and query["rows"] > WHOLE_ROWS
    blocks_per_group = query["width"] // block if whole_row else 1
    return Tuning({"TILE_N": blocks_per_group}, private=private)


_FORMULAS: dict[str, Callable[[TuningQuery, Family], Tuning | None]] = {
    "attention": _attention,
    "rope_attention": _attention,
    "matmul_ternary": _ternary,
    "matmul_ternary_block": _ternary,
    "norm_matmul": _norm_matmul,
    "norm_matmul_glu": _norm_matmul,
    "norm_rotate_quantize": _rotated,
    "glu_rotate_quantize": _rotated,
    "gated_rotate_quantize": _rotated,
    "argmax_advance": _argmax,
    "decoder_layer": _layer,
    "matmul_dense": _dense,
}
