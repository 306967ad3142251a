"""Tunings worth trying beside the one that tuning.py chooses."""

from __future__ import annotations

from collections.abc import Mapping


def variants(kernel: str, width: int, default: Mapping[str, int]) -> list[dict[str, int]]:
    """Other tunings for a launch; width: the columns of a matrix."""
    tried: list[dict[str, int]] = []
    units = -(-width // 256)
    if "STEPS" in default:
        for warps, tile in ((5, 16), (5, 32), (9, 32), (10, 16), (10, 32), (14, 16), (14, 32), (27, 16)):
            steps = -(-units // warps)
            if warps <= units and steps <= 4:
                tried.append({"GROUP": 32 * warps, "TILE_N": tile, "STEPS": steps})
        if kernel == "norm_matmul_glu":
            tried += [{"GROUP": 160, "TILE_N": 8, "STEPS": 2}, {"GROUP": 320, "TILE_N": 8, "STEPS": 1}]
    if kernel == "matmul_dense" and "UNROLL" in default:
        tried += [{"TILE_N": 4 * outs, "UNROLL": unroll} for outs, unroll in ((2, 2), (4, 2), (8, 1))]
    if kernel == "rope_attention":
        tried += [{"GROUP": group, "SPAN": span} for group, span in ((256, 128), (256, 256), (512, 128), (512, 512))]
    return [tuning for t in tried if (tuning := {**default, **t}) != default]
