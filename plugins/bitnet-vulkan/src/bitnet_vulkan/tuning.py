"""The choice of a launch's kernel variant, workgroup size and tile, by kind of device.

gpu.toml and software.toml list the launches whose sizes need no computation. The functions here and in product_tiles.py
compute those that depend on subgroups, cooperative matrices or shared memory; if one returns None, the table decides.
"""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.plugin import FEW_ROWS, DeviceType, Tuning, TuningQuery, TuningTable, table
from bitnet_hal.rounding import ceil_div

from bitnet_vulkan import product_tiles
from bitnet_vulkan.product_tiles import (
    BATCH_ROWS,
    LARGE_TILE,
    MATRIX_GROUP,
    MATRIX_WAVE,
    MAX_FEW_WIDTH,
    MEDIUM_TILE,
    SMALL_TILE,
    Family,
)

MAX_GROUP_HEADS = 8
"""The maximum query heads per key/value head that the split attention keeps in registers."""
MAX_SPLITS = 16
"""The maximum number of workgroups that share the positions of one row."""
MOST_ATTENTION_GROUPS = 512
"""The number of workgroups into which attention of a batch is split, with at most MAX_SPLITS per row."""
MAX_ROTATED = 1024
"""The maximum columns of a rotation that is fused with its neighbours."""
WHOLE_ROWS = 64
"""The number of rows above which one workgroup norms and rotates a whole row."""
MAX_LAYER_ROWS = 4
"""The maximum rows whose codes decoder_layer holds at the same time."""
LAYER_GROUP = 512
"""The invocations of a workgroup of decoder_layer on a GPU."""
LAYER_SUMS = 32768
"""The maximum bytes of sums in shared memory of a layer on matrix units (layer_tiles.glsl, block_tiles.glsl)."""
MEETING_WORDS = 9 * 32
"""The number of u32 counters at the start of the workspace of decoder_layer (meeting.glsl)."""
FLOAT = 4
"""The bytes of an f32 or u32."""

FAMILIES: dict[str, Family] = table(__file__, "families.toml")
TABLES = {name: TuningTable(table(__file__, f"{name}.toml")) for name in FAMILIES}


def select_tuning(query: TuningQuery) -> Tuning:
    """Return the tuning of a launch. Raises UnsupportedError if the device does not support it."""
    kind = "software" if query.info.type is DeviceType.SOFTWARE else "gpu"
    formula = _FORMULAS.get(query.spec.name)
    tuning = formula(query, {**FAMILIES[kind], **query.info.extra}) if formula else None
    return tuning or TABLES[kind].tune(query)


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """Return the selected tuning, then others that `bitnet tune` measures.

    These are tiles of cooperative matrices, or other numbers of lanes per matrix row.
    """
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
    """Return the tuning of a prompt's attention on f16 cooperative matrices.

    A workgroup has 64 (query head, row) pairs.
    """
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
    if MAX_LAYER_ROWS < query["rows"] <= FEW_ROWS and family["narrow-matrix"]:
        tuning = _layer_on_matrix_units(query, family)
        if tuning:
            return tuning
    group = 8 * wave if family["software"] else LAYER_GROUP
    widest = max(hidden, heads * kv_heads * dim, ffn)
    room = query.padded_rows
    if room > (MAX_LAYER_ROWS if query["BLOCK"] else FEW_ROWS):
        raise query.unsupported("so many rows are faster as separate launches")
    at_once = min(room, MAX_LAYER_ROWS, group // 32)  # 32 invocations share the largest group of columns with a scale
    while _layer_shared_bytes(query, heads, widest, group, wave, at_once) > family["shared_memory"]:
        at_once //= 2
        if not at_once:
            raise query.unsupported("rows of such a width run as separate launches")
    # a lane's part of rows, weights, scales, keys and values must fit in its 128 registers (workgroups of 512)
    lanes = 16 if widest <= MAX_FEW_WIDTH else 32
    private = {
        "GROUP": group,
        "TILE_T": at_once,
        "ROOM": room,
        "LANES": min(lanes, wave),
        "BATCH": 1,
        "ROWS": 1 if query["BLOCK"] else 2,
        **_layer_shape(query),
    }
    members = family["resident"]
    return Tuning({"MEMBERS": members}, "resident", private, FLOAT * _layer_words(query, members))


def _layer_on_matrix_units(query: TuningQuery, family: Family) -> Tuning | None:
    """Return the tuning of decoder_layer_matrix.comp, or with block scales of decoder_layer_block.comp, None if the
    device has too little shared memory."""
    dim = query["head_dim"]
    kv_heads = query["n_kv_heads"]
    heads = query["n_heads"] // kv_heads
    waves = LAYER_GROUP // MATRIX_WAVE
    attention_parts = FLOAT * waves * heads * dim
    new_heads = FLOAT * (heads + 2) * (dim + dim // MATRIX_WAVE)
    reductions = FLOAT * (3 * waves * heads + 8 * waves + 64)
    if max(attention_parts, LAYER_SUMS) + new_heads + reductions > family["shared_memory"]:
        return None
    room = query.padded_rows
    private = {
        "GROUP": LAYER_GROUP,
        "ROOM": room,
        "LANES": 4,  # blocks of activations loaded at a time
        "BATCH": 1,
        **_layer_shape(query),
    }
    members = family["resident"]
    widest = ceil_div(max(query["hidden"], query["n_heads"] * dim, query["ffn"]), 128) * 128
    scales = widest // 32 if query["BLOCK"] else 2  # of a row, or a scale and a sum
    quantized_rows = room * (widest // FLOAT + scales) + 4  # words, and alignment
    workspace = FLOAT * (_layer_words(query, members) + quantized_rows)
    return Tuning({"MEMBERS": members}, "block" if query["BLOCK"] else "matrix", private, workspace)


def _layer_shape(query: TuningQuery) -> dict[str, int]:
    """Return the constants of a layer's shape."""
    kv_heads = query["n_kv_heads"]
    return {
        "WIDTH": query["hidden"],
        "FFN": query["ffn"],
        "HEADS": query["n_heads"] // kv_heads,
        "KV_HEADS": kv_heads,
        "DIM": query["head_dim"],
    }


def _layer_words(query: TuningQuery, members: int) -> int:
    """Return the words of the counters and of the partial results of attention of a layer. members: workgroups."""
    kv_heads = query["n_kv_heads"]
    pairs = query.padded_rows * kv_heads  # of a row and a key/value head
    return MEETING_WORDS + pairs + max(members, pairs) * (query["n_heads"] // kv_heads) * (query["head_dim"] + 2)


def _layer_shared_bytes(query: TuningQuery, heads: int, widest: int, group: int, wave: int, at_once: int) -> int:
    """Return the bytes of shared memory of decoder_layer (decoder_layer_resident.comp, layer_attention.glsl).

    heads: query heads per key/value head. widest: columns of the widest row. group, wave: invocations of a workgroup
    and of a subgroup. at_once: rows whose codes are held at a time.
    """
    dim = query["head_dim"]
    waves = group // wave
    attention_parts = FLOAT * waves * heads * (dim + 3)
    row_codes = at_once * (widest + 256) + 3 * FLOAT * waves * heads
    squares = dim // wave
    new_heads = FLOAT * (heads + 2) * (dim + squares)  # the row's rotated queries, key and value
    scales = at_once * (32 * ceil_div(widest, 128) if query["BLOCK"] else 32)
    reductions = FLOAT * heads + 4 * FLOAT * waves + 64
    return max(attention_parts, row_codes) + new_heads + scales + reductions


def _rotated(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of a rotation fused with the norm or gate before it and the quantizer after it.

    An invocation has four columns.
    """
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
    "matmul_ternary": product_tiles.ternary,
    "matmul_ternary_block": product_tiles.ternary,
    "norm_matmul": product_tiles.norm_matmul,
    "norm_matmul_glu": product_tiles.norm_matmul,
    "norm_rotate_quantize": _rotated,
    "glu_rotate_quantize": _rotated,
    "gated_rotate_quantize": _rotated,
    "argmax_advance": _argmax,
    "decoder_layer": _layer,
    "matmul_dense": product_tiles.dense,
    "approx_logits": product_tiles.approx_logits,
}
