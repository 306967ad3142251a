"""Basic types of the catalogue."""

from __future__ import annotations

from typing import Literal

Grid = tuple[int, int, int]
"""Workgroups in x, y and z."""

DenseType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q6_K"]

DENSE_BLOCKS: dict[DenseType, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q6_K": (256, 210),
}
"""Elements and bytes of one block of each dense type."""
