"""Tunings of products, whose tiles depend on subgroups and cooperative matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bitnet_hal.plugin import FEW_ROWS, Tuning, TuningQuery
from bitnet_hal.rounding import ceil_div

MAX_FEW_WIDTH = 8192
"""The maximum columns of a dense row, or of a row with scales, whose part a lane holds in registers."""
BATCH_ROWS = 64
"""The maximum rows of a batch; a step with more rows holds a prompt."""
NORM_WIDE = 16384
"""The number of columns above which a norm uses the second size of `norm_group` (families.toml)."""
NARROW_OUTS = 256
"""The maximum rows of a dense matrix (gates of delta nets) with a workgroup each, if there are few activation rows."""
WIDE_OUTS = 8192
"""The number of outputs from which a batch has wider tiles, and makes operands in registers."""
MAX_EXACT_WIDTH = 65536
"""The maximum columns whose products are added up exactly in f32."""
NORMAL_GROUP = 256
"""The invocations of a workgroup of a product of one row, also those of a rotation of 1,024 columns."""
Family = Mapping[str, Any]
"""A row of families.toml, and DeviceInfo.extra."""


class MatrixTile(NamedTuple):
    """A tile of a workgroup on cooperative matrices: outputs x activation rows.

    Each of its four subgroups computes `wave_rows` of the rows.
    """

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


def _lanes(query: TuningQuery, family: Family, rows: int, *, normed: bool = False) -> tuple[int, dict[str, int]]:
    """Return (TILE_N, constants) of a ternary product of few rows, in which LANES neighbours share a matrix row.

    normed: the product is fused with a norm.
    """
    width = query["width"]
    if rows > 2 and not family["software"]:
        # activations are most of the traffic: a whole subgroup per matrix row, two matrix rows per load of activations
        lanes = family["subgroups"]
        group = 128
        matrix_rows_per_lane = 2
    else:
        lanes = min(16, family["subgroups"])
        normal_group, wide_group = family["norm_group"]
        group = wide_group if normed and width > NORM_WIDE else normal_group
        if width > MAX_FEW_WIDTH:
            matrix_rows_per_lane = 1
        elif query["outs"] >= 8192:
            matrix_rows_per_lane = 4
        else:
            matrix_rows_per_lane = 2
    tile_n = group // lanes * matrix_rows_per_lane
    return tile_n, {"GROUP": group, "WIDTH": width, "LANES": lanes}


def ternary(query: TuningQuery, family: Family) -> Tuning | None:
    """Return the tuning of a ternary product, None for one that needs neither subgroups nor cooperative matrices."""
    rows = query["rows"]
    if 1 < rows <= BATCH_ROWS and family["narrow-matrix"] and _is_wide(query):
        return _wide_product(query)
    if 1 < rows <= BATCH_ROWS and family["matrix"]:
        return _batch_product(query)
    if rows > FEW_ROWS:
        return _matrix_product(query) if family["matrix"] else None
    if not family["subgroups"]:
        return None
    if rows == 1 and "BLOCK" in query and query["ABLOCK"] and query["width"] <= family["shared_memory"] // 2:
        return _block_row(query, family)
    tile_n, private = _lanes(query, family, rows)
    max_rows = 2 if family["software"] else FEW_ROWS
    tile_t = min(query.padded_rows, max_rows)
    return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "few", private)


def _block_row(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of a product of one row with block scales of weights and activations."""
    width = query["width"]
    lanes = min(family["subgroups"], 32 if width > MAX_FEW_WIDTH else 16)
    private = {"GROUP": NORMAL_GROUP, "WIDTH": width, "LANES": lanes}
    return Tuning({"TILE_N": 2 * NORMAL_GROUP // lanes, "TILE_T": 1, "SPLITS": 1}, "row", private)


def _batch_product(query: TuningQuery) -> Tuning:
    """Return the tuning of a ternary product of a batch on cooperative matrices.

    Tiles are narrow, with many subgroups along the columns, so that few rows occupy all multiprocessors.
    """
    tile_t = 16 if query["rows"] <= 16 else 32
    wide = query["outs"] >= WIDE_OUTS
    waves = 4 if wide or tile_t == 32 else 8
    tile_n = 32 if wide else 16
    return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "batch", {"GROUP": MATRIX_WAVE * waves})


def _is_wide(query: TuningQuery) -> bool:
    """Return whether a batch's product is faster with operands made in registers, as measured on an H100."""
    return "BLOCK" not in query and query["outs"] >= WIDE_OUTS and query["width"] <= MAX_EXACT_WIDTH


def _wide_product(query: TuningQuery) -> Tuning:
    """Return the tuning of a batch's ternary product with operands that are made in registers."""
    rows = query["rows"]
    tile_t = next(size for size in (8, 16, 32) if rows <= size or size == 32)
    return Tuning({"TILE_N": 32, "TILE_T": tile_t, "SPLITS": 1}, "wide", {"GROUP": MATRIX_GROUP})


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


def norm_matmul(query: TuningQuery, family: Family) -> Tuning:
    """Return the tuning of a norm fused with its product. Raises UnsupportedError for several rows."""
    if query["rows"] > 1:
        raise query.unsupported("several rows are faster with a launch for their norm")
    tile_n, private = _lanes(query, family, 1, normed=True)
    return Tuning({"TILE_N": tile_n, "TILE_T": 1}, private=private)


def dense(query: TuningQuery, family: Family) -> Tuning | None:
    """Return the tuning of a dense product, None for one that needs neither subgroups nor cooperative matrices."""
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


def approx_logits(query: TuningQuery, family: Family) -> Tuning | None:
    """Return the tuning of approximate logits of a batch on cooperative matrices, None for other devices and sizes.

    One and two rows are not served: they have a kernel of their own (gpu.toml).
    """
    rows = query["rows"]
    if not family["half-matrix"] or not 2 < rows <= BATCH_ROWS or query["width"] % 64:
        return None
    return Tuning({"TILE_N": 256, "TILE_T": 16 if rows <= 16 else 32}, "batch", {"GROUP": 256})
