"""Optional abilities of a device, with the names used in DeviceInfo.extra and BITNET_VULKAN_WITHOUT."""

from __future__ import annotations

import os
from typing import Any

from bitnet_hal.errors import UsageError
from bitnet_hal.plugin import Handle

from bitnet_vulkan.driver import function, vk
from bitnet_vulkan.properties import LIST_DEVICES

ABILITIES = ("dot", "subgroups", "matrix", "half-matrix", "narrow-matrix", "import", "resident")
"""The names of all abilities.

dot: packed 4x8 dot products. subgroups: the size of subgroups, with arithmetic and shuffles. matrix: products of 16 x
32 by 32 x 16 bytes with i32 sums by subgroups of 32, on NVIDIA's driver. half-matrix: the same for 16 x 16 f16 with f32
sums. narrow-matrix: the same for 16 x 16 by 16 x 8 f16. import: alignment in bytes of host memory that may be imported.
resident: workgroups that run at the same time.
"""
VARIABLE = "BITNET_VULKAN_WITHOUT"
MIN_SUBGROUP = 8
"""The minimum size of subgroups: kernels reduce 32 columns among eight neighbours."""
PREFERRED_SUBGROUP = 32
_SUBGROUP_OPERATIONS = 0x01 | 0x04 | 0x10  # VkSubgroupFeatureFlagBits: basic, arithmetic, shuffle
_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_NVIDIA_DRIVER = 4  # VK_DRIVER_ID_NVIDIA_PROPRIETARY, whose placement of a matrix's elements matrix.glsl relies on
_FLOAT16, _FLOAT32, _SINT8, _SINT32 = 0, 1, 3, 5  # VkComponentTypeKHR
_SUBGROUP_SCOPE = 3  # VK_SCOPE_SUBGROUP_KHR
_HALF_PRODUCT = {
    "MSize": 16,
    "NSize": 16,
    "KSize": 16,
    "AType": _FLOAT16,
    "BType": _FLOAT16,
    "CType": _FLOAT32,
    "ResultType": _FLOAT32,
    "scope": _SUBGROUP_SCOPE,
}

MATRIX_SHAPES = {
    "matrix": {
        "MSize": 16,
        "NSize": 16,
        "KSize": 32,
        "AType": _SINT8,
        "BType": _SINT8,
        "CType": _SINT32,
        "ResultType": _SINT32,
        "scope": _SUBGROUP_SCOPE,
    },
    "half-matrix": _HALF_PRODUCT,
    "narrow-matrix": {**_HALF_PRODUCT, "NSize": 8},
}
"""VkCooperativeMatrixPropertiesKHR that the kernels multiply, by ability."""


def abilities(device: Handle, about: dict[str, Any]) -> dict[str, int]:
    """Return the value of each of ABILITIES, 0 if the device lacks it or BITNET_VULKAN_WITHOUT names it.

    about: `query_properties` of the device.
    """
    without = disabled_abilities()
    subgroups = 0 if "subgroups" in without else _subgroup_size(about)
    shapes = _matrix_shapes(device, about) if subgroups == 32 else set()
    able = {
        "dot": int(about["shaderIntegerDotProduct"]),
        "subgroups": subgroups,
        "matrix": int("matrix" in shapes),
        "half-matrix": int("half-matrix" in shapes),
        "narrow-matrix": int("narrow-matrix" in shapes),
        "import": int(about["minImportedHostPointerAlignment"]),
        "resident": int(about["shaderSMCount"]) if subgroups else 0,
    }
    return {name: 0 if name in without else able[name] for name in ABILITIES}


def _subgroup_size(about: dict[str, Any]) -> int:
    """Return the size of the full subgroups that kernels require, 0 if it is not guaranteed or too small."""
    sized = about["subgroupSizeControl"] and about["computeFullSubgroups"]
    operations = about["supportedOperations"] & _SUBGROUP_OPERATIONS == _SUBGROUP_OPERATIONS
    in_compute = about["supportedStages"] & about["requiredSubgroupSizeStages"] & _COMPUTE_STAGE
    if not (sized and operations and in_compute):
        return 0
    size = min(max(PREFERRED_SUBGROUP, about["minSubgroupSize"]), about["maxSubgroupSize"])
    return size if size >= MIN_SUBGROUP else 0


def _matrix_shapes(device: Handle, about: dict[str, Any]) -> set[str]:
    """Return the keys of MATRIX_SHAPES that the device multiplies."""
    usable = about["cooperativeMatrix"] and about["vulkanMemoryModelDeviceScope"]
    if about["driverID"] != _NVIDIA_DRIVER or not usable:
        return set()
    halves = about["shaderFloat16"]
    wanted = {"matrix": about["shaderInt8"], "half-matrix": halves, "narrow-matrix": halves}
    query = function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") if any(wanted.values()) else None
    products = vk().listed(query, LIST_DEVICES, device) if query else []
    return {
        name
        for name, shape in MATRIX_SHAPES.items()
        if wanted[name] and any(shape.items() <= product.items() for product in products)
    }


def disabled_abilities() -> set[str]:
    """Return the abilities that BITNET_VULKAN_WITHOUT lists: "all", or some of ABILITIES, separated by commas.

    The variable serves to work around a driver's faults and to test the paths of simpler devices. Raises UsageError for
    any other word.
    """
    text = os.environ.get(VARIABLE, "")
    names = {name.strip() for name in text.split(",")} - {""}
    if names == {"all"}:
        return set(ABILITIES)
    for name in names - set(ABILITIES):
        raise UsageError(f"{VARIABLE}={text}: '{name}' is not one of {', '.join(ABILITIES)}, all")
    return names
