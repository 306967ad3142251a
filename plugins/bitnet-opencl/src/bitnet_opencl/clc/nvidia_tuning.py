"""Tunings for NVIDIA GPUs of compute capability 8.0 and later, measured on an H200.

A device without tensor cores (`ptx` is false) gets variants without their instructions, which tests can run anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.plugin import FEW_ROWS, Tuning, TuningQuery
from bitnet_hal.rounding import ceil_div

WARP = 32
"""Lanes of a warp."""
MAX_GROUP_HEADS = 4
"""The maximum number of query heads of a work-group; they share one key/value head."""
MAX_SPLITS = 32
"""The maximum number of work-groups that share the positions of a row."""
NARROW_OUTS = 256
"""The maximum rows of a dense matrix with a work-group for each, if there are few activation rows."""
LONG_ROW = 1024
"""The number of columns from which a product has its width built in, so that the compiler unrolls its loop."""
MOST_LOCAL_WIDTH = 32768
"""The maximum columns of a row of activations that a product copies to local memory."""
BATCH_ROWS = 64
"""The maximum rows of a batch; a step with more rows holds a prompt."""
MOST_PAIRS = 3
"""The maximum pairs of blocks of 128 columns whose weights a warp holds in registers."""
MOST_TILES = 4
"""The maximum tiles of 16 matrix rows whose sums a warp holds in registers."""
MOST_TILE_PAIRS = 5
"""The maximum pairs of blocks of 16 matrix rows that a warp of a product with norms holds in registers."""
LOCAL_BYTES = 49152
"""Bytes of local memory per work-group."""
FLOAT = 4
"""Bytes of an f32."""


def _quantize(query: TuningQuery) -> Tuning:
    group = 512
    if query["ABLOCK"]:
        return Tuning(private={"GROUP": group})
    return Tuning(private={"GROUP": group, "SHARE": ceil_div(query["width"], group)})


def _argmax(query: TuningQuery) -> Tuning:
    splits = min(256, ceil_div(query["vocab"], 2048))
    if splits == 1:
        return Tuning({"SPLITS": 1}, private={"GROUP": 1024})
    words_per_row = 1 + 2 * splits  # a counter, then the largest logit of each split and its index
    return Tuning({"SPLITS": splits}, "split", {"GROUP": 256}, 4 * query["rows"] * words_per_row)


def _ternary(query: TuningQuery) -> Tuning:
    if query["rows"] > 1 and query.of_device("ptx"):
        return _product_of_few(query) if query["rows"] <= BATCH_ROWS else _tensor_core_product(query)
    width = query["width"]
    blocks = "BLOCK" in query
    if blocks and query["rows"] == 1 and query["ABLOCK"] and width <= MOST_LOCAL_WIDTH:
        return _block_row(query)
    lanes, depth = (16, 3) if query["outs"] > 8192 else (32, 4)
    if blocks:
        lanes = _block_lanes(query)
    private = {"GROUP": 128, "LANES": lanes}
    if not blocks:
        loads_per_lane = ceil_div(width // 64, lanes)  # 16 bytes, 64 weights each
        private["DEPTH"] = min(depth, loads_per_lane) if width >= LONG_ROW else 1
        if width >= LONG_ROW:
            private["WIDTH"] = width
    tile = {"TILE_N": 256 // lanes, "TILE_T": min(query.padded_rows, FEW_ROWS), "SPLITS": 1}
    return Tuning(tile, private=private)


def _block_row(query: TuningQuery) -> Tuning:
    """Return the tuning of a product of one row with block scales of weights and activations."""
    width = query["width"]
    lanes = 32 if width > 8192 else 16
    private = {"GROUP": 256, "LANES": lanes, "WIDTH": width}
    return Tuning({"TILE_N": 2 * 256 // lanes, "TILE_T": 1, "SPLITS": 1}, "row", private)


def _block_lanes(query: TuningQuery) -> int:
    """Return the lanes of a matrix row with block scales, as measured on an H100 with the shapes of Bonsai 2 27B."""
    if query["width"] > 8192:
        return 32
    return 8 if query["outs"] >= 16384 else 16


def _product_of_few(query: TuningQuery) -> Tuning:
    """Return the tuning of a ternary product of a batch.

    A work-group has 8, 16 or 32 rows; its warps share the columns and have all their weights in flight.
    """
    tile_t = min(32, max(8, query.padded_rows))
    pairs = ceil_div(query["width"], 256)
    most_warps = 16 if tile_t == 8 else 8  # limited by local memory for their sums, and by registers
    each = min(MOST_PAIRS, ceil_div(pairs, most_warps))
    warps = min(most_warps, ceil_div(pairs, each))
    return Tuning({"TILE_N": 32, "TILE_T": tile_t, "SPLITS": 1}, "few", {"GROUP": WARP * warps, "PAIRS": each})


def _tensor_core_product(query: TuningQuery) -> Tuning:
    """Return the tuning of a prompt's ternary product.

    Tiles are 128 x 64, or 64 x 64 if there would be fewer than two work-groups per multiprocessor.
    """
    tiles = ceil_div(query["outs"], 128) * ceil_div(query["rows"], 64)
    tile_n = 64 if tiles < 2 * query.of_device("compute_units") else 128
    return Tuning({"TILE_N": tile_n, "TILE_T": 64, "SPLITS": 1}, "mma", {"GROUP": 128})


def _dense(query: TuningQuery) -> Tuning:
    width = query["width"]
    if query["outs"] <= NARROW_OUTS and query["rows"] <= FEW_ROWS:
        return Tuning({"TILE_N": 1, "TILE_T": query.padded_rows}, "narrow", {"GROUP": 256})
    halves = query["DTYPE"] == 1
    if query.of_device("ptx") and halves and width % 64 == 0 and 1 < query["rows"] <= BATCH_ROWS:
        tile_t = min(32, max(8, query.padded_rows))
        return Tuning({"TILE_N": 256, "TILE_T": tile_t}, "mma", {"GROUP": 256, "CHUNK": 4096 // tile_t})
    private = {"GROUP": 128, "LANES": WARP, "ROWS": 2, "ALIGNED": int(width % 8 == 0)}
    if width >= LONG_ROW:
        private["WIDTH"] = width
    return Tuning({"TILE_N": 8, "TILE_T": min(query.padded_rows, 4)}, private=private)


def _attention(query: TuningQuery) -> Tuning:
    head_dim = query["head_dim"]
    prompt = query["rows"] > FEW_ROWS
    halves = query["KV"] == 1
    if query.of_device("ptx") and prompt and halves and head_dim in (64, 128):
        heads = query.shared_heads(MAX_GROUP_HEADS)
        rows = 16 * max(1, 4 // heads)
        threads = 2 * heads * rows  # a warp for 16 rows of a head
        tile = {"TILE_N": heads, "TILE_T": rows, "SPLITS": 1}
        return Tuning(tile, "mma", {"GROUP": threads, "HEAD_DIM": head_dim})
    if head_dim <= 8 * WARP:
        return _team_attention(query, "split")
    private = {"GROUP": 256, "LANES": 8, "CHUNK": 256, "SPREAD": 256, "OWNED": ceil_div(head_dim, 256)}
    return Tuning({"TILE_N": 1, "TILE_T": 1, "SPLITS": 1}, private=private)


def _rope_attention(query: TuningQuery) -> Tuning:
    return _team_attention(query, "")


def _team_attention(query: TuningQuery, variant: str) -> Tuning:
    """Return the tuning of attend.clh: a team of lanes shares a position, 8 elements each.

    If there are few rows, several work-groups share the positions of a row.
    """
    head_dim = query["head_dim"]
    octets = ceil_div(head_dim, 8)
    if octets > WARP:
        raise query.unsupported(f"heads of {head_dim} elements are not supported")
    heads = query.shared_heads(MAX_GROUP_HEADS)
    head_groups = query.padded_rows * (query["n_heads"] // heads)  # padded: prompts of any length share few programs
    splits = 1
    if query.of_device("ptx"):
        splits = min(MAX_SPLITS, ceil_div(2 * query.of_device("compute_units"), head_groups))
    private = {
        "GROUP": 128,
        "GROUPS": head_groups if splits > 1 else 1,
        "LANES": 1 << (octets - 1).bit_length(),
        "HEAD_DIM": head_dim,
        "KEYS": 2,
        "HEADS": heads,
    }
    workspace = partial_bytes(head_groups, splits, heads, octets) if splits > 1 else 0
    return Tuning({"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}, variant, private, workspace)


def partial_bytes(head_groups: int, splits: int, heads: int, octets: int) -> int:
    """Return the bytes of partial results of attend.clh.

    These are a counter for each head group, then for each split and head its weighted values (two float4 per octet),
    maximum and total.
    """
    float4_per_head = 2 * octets + 1
    return 4 * FLOAT * (ceil_div(head_groups, 4) + head_groups * splits * heads * float4_per_head)


def _norm_matmul(query: TuningQuery) -> Tuning:
    """Return the tuning of a product with its norm.

    There are enough work-groups for all compute units, but few more, because each repeats the norm.
    """
    width = query["width"]
    if query["rows"] > 1:
        return _norm_matmul_of_few(query)
    group = 256
    lanes = 16 if width <= 4096 else 32
    row_bytes = width * 3 / 2 if query["BLOCK"] else width  # int8 codes, and scales
    if row_bytes + 3 * FLOAT * group > LOCAL_BYTES:
        raise query.unsupported(f"{width} columns are not supported")
    two_rows = query["outs"] * lanes > 2 * query.of_device("compute_units") * group
    matrix_rows_per_lane = 2 if two_rows else 1
    tile = {"TILE_N": group // lanes * matrix_rows_per_lane, "TILE_T": 1}
    return Tuning(tile, private={"GROUP": group, "LANES": lanes, "COLUMNS": query["columns"], "WIDTH": width})


def _norm_matmul_of_few(query: TuningQuery) -> Tuning:
    """Return the tuning of a product of two to eight rows with their norms, on tensor cores.

    There is about one work-group per compute unit; its warps form SPLIT_N parts of its matrix rows by parts of the
    columns.
    """
    if query["rows"] > FEW_ROWS:
        raise query.unsupported(f"{query['rows']} rows are not supported")
    width = query["width"]
    pairs = ceil_div(width, 256)
    warps = 20 if pairs % 5 == 0 else 16
    row_warps = 4 if width <= 4096 else warps // 2
    quads = ceil_div(width // 4, row_warps * WARP)
    outs_per_tile = 8 if query.spec.name == "norm_matmul_glu" else 16
    wanted = ceil_div(query["outs"], outs_per_tile * query.of_device("compute_units"))
    splits = [(n, tiles) for n in (1, 2, 4) if warps % n == 0 for tiles in range(1, MOST_TILES + 1)]

    def excess(split: tuple[int, int]) -> tuple[int, int, int]:
        made = split[0] * split[1]
        return max(0, wanted - made), made, split[1]

    split_n, tiles = min(splits, key=excess)
    room = query.padded_rows
    code_bytes = room * (width + 32)
    part_bytes = FLOAT * room * warps * tiles * 16
    scale_bytes = 2 * FLOAT * room * (width // 32 if query["ABLOCK"] else 1)
    if max(code_bytes, part_bytes) + scale_bytes + 5 * FLOAT * warps > LOCAL_BYTES:
        raise query.unsupported(f"{query['rows']} rows of {width} columns are not supported")
    share = ceil_div(pairs, warps // split_n)
    private = {
        "GROUP": WARP * warps,
        "SPLIT_N": split_n,
        "TILES": tiles,
        "PAIRS": min(share, max(1, MOST_TILE_PAIRS // tiles)),
        "QUADS": quads,
        "ROW_WARPS": row_warps,
        "ROOM": room,
        "COLUMNS": query["columns"],
        "WIDTH": width,
    }
    return Tuning({"TILE_N": outs_per_tile * split_n * tiles, "TILE_T": FEW_ROWS}, "few", private)


FORMULAS: dict[str, Callable[[TuningQuery], Tuning]] = {
    "rms_norm_quantize": _quantize,
    "glu_norm_quantize": _quantize,
    "argmax_advance": _argmax,
    "matmul_ternary": _ternary,
    "matmul_ternary_block": _ternary,
    "matmul_dense": _dense,
    "attention": _attention,
    "rope_attention": _rope_attention,
    "norm_matmul": _norm_matmul,
    "norm_matmul_glu": _norm_matmul,
}
