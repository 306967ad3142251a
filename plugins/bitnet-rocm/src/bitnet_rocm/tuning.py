"""Block sizes and tiles: which source a launch takes, and its constants. Nothing here was measured on an AMD GPU."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import Tuning
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.small_head import HEAD_GROUP
from bitnet_core.kernels.spec import KernelSpec

FEW_ROWS = 8
"""Rows up to which a step is a decode step."""
MOST_QUANTIZING = 640
"""Threads that share a row's norm and quantization, at most."""
MOST_COLUMNS = 32_768
"""Longest row that a norm joined to its product keeps in 48 KiB of shared memory, beside scales and sums."""
ROTATED_HEADS = 8
"""Heads that a block of rope_store_kv_heads.cu rotates."""
WORKSPACE = 1 << 20
"""Bytes that blocks which share an output leave their parts in; see kernels/portable/meeting.cuh."""
MOST_MEETINGS = 4096
"""Outputs that may be shared so."""

MFMA = ("gfx90a", "gfx942")
WMMA = ("gfx11", "gfx120")
"""Architectures whose matrix cores kernels/amd/matrix.cuh knows, in waves of 64 and of 32 threads."""

Params = Mapping[str, int | float]
Constants = Mapping[str, int]


def tuned(group: int, tile: Constants, variant: str = "", *, workspace: int = 0, **private: int) -> Tuning:
    """group: threads of a block, GROUP in the sources; private: their other constants."""
    return Tuning(dict(tile), variant, {"GROUP": group, **private}, workspace)


def choose(
    spec: KernelSpec, constants: Constants, params: Params, compute_units: int, architecture: str = ""
) -> Tuning:
    """Tuning of one launch. architecture: such as "gfx90a:sramecc+:xnack-"."""
    name, rows = spec.name, int(params.get("rows", 1))
    if name in ("matmul_ternary", "matmul_ternary_block") and rows > FEW_ROWS:
        return tile(params, compute_units, architecture)
    if name in ("matmul_ternary", "matmul_ternary_block", "matmul_dense"):
        return product(name, constants, params)
    if name == "attention":
        return tuned(128, {"TILE_N": shared_heads(params, 4), "TILE_T": 1, "SPLITS": 1})
    if name == "rope_attention":
        return rope_attention(params, compute_units)
    if name in ("norm_matmul", "norm_matmul_glu"):
        return joined(constants, params)
    if name in ("pack_head", "draft_logits", "rescore_logits"):
        return small_head(name, rows)
    if name == "argmax_advance":
        split = rows <= 64 and int(params["vocab"]) >= 1 << 14
        return tuned(512, {"SPLITS": 32 if split else 1}, workspace=WORKSPACE)
    if name.endswith("norm_quantize"):
        fours = int(params["stride"]) // 4
        vectors = ceil_div(fours, MOST_QUANTIZING)
        return tuned(32 * ceil_div(fours, 32 * vectors), {}, VECTORS=vectors)
    if name == "rope_store_kv":
        if constants["KV"] == 1 and not constants["INTERLEAVED"] and int(params["head_dim"]) % 4 == 0:
            return tuned(32 * ROTATED_HEADS, {"TILE_N": ROTATED_HEADS}, "heads")
        return tuned(64, {"TILE_N": 1})
    fixed = {
        "embed_rows": (128, {"TILE_N": 1024}),
        "embed_rows_ternary": (128, {"TILE_N": 1024}),
        "top_k": (1024, {"SPLITS": 1}),
    }
    return tuned(*fixed.get(name, (512, {})))


def shared_heads(params: Params, most: int) -> int:
    """Query heads of a block, which have one key/value head."""
    group = int(params["n_heads"]) // int(params["n_kv_heads"])
    return max(n for n in range(1, most + 1) if group % n == 0)


def tile(params: Params, compute_units: int, architecture: str) -> Tuning:
    """Ternary products of many rows: smaller tiles where larger ones would leave compute units idle."""
    rows, outs = int(params["rows"]), int(params["outs"])
    large = rows > 32 and ceil_div(outs, 128) * ceil_div(rows, 64) >= 2 * compute_units
    sizes = {"TILE_N": 128 if large else 64, "TILE_T": 64 if rows > 32 else 32, "SPLITS": 1}
    if not architecture.startswith((*MFMA, *WMMA)):
        return tuned(256, sizes, "tile")
    waves_t = sizes["TILE_T"] // 32
    wave = 64 if architecture.startswith(MFMA) else 32
    return tuned(4 * wave, sizes, "matrix", WAVES_N=4 // waves_t, WAVES_T=waves_t)


def product(name: str, constants: Constants, params: Params) -> Tuning:
    """Products with weights: lanes that share a row of them, rows of activations that a block takes."""
    rows = int(params["rows"])
    tile_t = next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == 8)
    if name != "matmul_dense":
        return tuned(128, {"TILE_N": 8, "TILE_T": tile_t, "SPLITS": 1})
    if constants["DTYPE"] == 1 and int(params["width"]) % 8 == 0 and rows <= FEW_ROWS:
        return tuned(128, {"TILE_N": 16, "TILE_T": tile_t}, "few", UNROLL=1)
    return tuned(128, {"TILE_N": 8, "TILE_T": tile_t})


def joined(constants: Constants, params: Params) -> Tuning:
    """A norm and its product; of norm_matmul_glu.cu, TILE_N rows of each half. Warps share the columns, 256 at a time,
    STEPS times each. UnsupportedError for what separate launches do better, or what shared memory has no room for."""
    rows, columns = int(params["rows"]), int(params["columns"])
    if rows > 1 or columns > MOST_COLUMNS:
        raise refused(f"a norm joined to its product serves one row of {MOST_COLUMNS} columns, not {rows} of {columns}")
    units = ceil_div(int(params["width"]), 256)
    steps = max(2 if units > 16 else 1, ceil_div(units, 32))
    variant = "block" if constants["BLOCK"] else ""
    group = 32 * max(4, ceil_div(units, steps))
    return tuned(group, {"TILE_N": 16, "TILE_T": 1}, variant, STEPS=steps, COLUMNS=columns)


def refused(why: str) -> UnsupportedError:
    """A launch that other kernels do better, or that this one cannot do."""
    return UnsupportedError(why, backend="rocm", operation="tuning")


def small_head(name: str, rows: int) -> Tuning:
    """The exact small head, for as many rows as a decode step may have."""
    if name == "pack_head":
        return tuned(256, {"TILE_N": 8})
    if rows > FEW_ROWS:
        raise refused(f"no drafts for {rows} rows")
    if name == "rescore_logits":
        return tuned(256, {"TILE_N": 1024, "TILE_T": 1})
    return tuned(256, {"TILE_N": HEAD_GROUP, "TILE_T": next(tile for tile in (1, 2, 4, 8) if rows <= tile)})


def rope_attention(params: Params, compute_units: int) -> Tuning:
    """Query heads of a block, and blocks that share a row's positions, of which each has SPAN at least."""
    rows, heads, head_dim = (int(params[name]) for name in ("rows", "n_heads", "head_dim"))
    tile_n = shared_heads(params, min(8, 1024 // head_dim))
    most = (WORKSPACE - 4 * MOST_MEETINGS) // (4 * rows * heads * (head_dim + 4))  # parts that fit
    splits = min(32, most, compute_units // (rows * (heads // tile_n)))
    lanes = 1 << (ceil_div(head_dim, 8) - 1).bit_length()
    tile = {"TILE_N": tile_n, "TILE_T": 1, "SPLITS": max(1, splits)}
    return tuned(256, tile, workspace=WORKSPACE, DIM=head_dim, LANES=lanes, UNROLL=4, SPAN=128)
