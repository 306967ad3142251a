"""Workgroup sizes and tiles by kind of device."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.hal import DeviceType
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan.instance import PhysicalDevice
from bitnet_vulkan.pipelines import TILED

MANY_ROWS = 16
"""Rows from which the tiled matrix product pays."""


def choose(
    physical: PhysicalDevice, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
) -> dict[str, int]:
    """Tuning constants of one launch. Software devices like small groups: each invocation is a loop there."""
    software = physical.info.type is DeviceType.SOFTWARE
    rows = int(params["rows"])
    if spec.name in ("matmul_ternary", "matmul_ternary_block", "matmul_dense"):
        if spec.name == "matmul_ternary" and rows >= MANY_ROWS:
            return {"GROUP": 256, "TILE_N": TILED, "TILE_T": TILED}
        largest = 2 if software else 8  # unrolled code takes a software device long to compile
        tile_t = next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == largest)
        group, tile_n = (32, 4) if software else (128, 8)
        return {"GROUP": group, "TILE_N": tile_n, "TILE_T": tile_t}
    if spec.name == "attention":
        return {"GROUP": 64, "TILE_N": 1, "TILE_T": 1}
    if spec.name == "embed_rows":
        return {"GROUP": 64, "TILE_N": 512}
    if spec.name == "rope_store_kv":
        return {"GROUP": 16 if software else 64}
    return {"GROUP": 32 if software else 256}
