"""Which optional abilities of a physical device the plugin uses, and how a logical device asks for them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from bitnet_core.errors import UsageError

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make

DOT = "VK_KHR_shader_integer_dot_product"
MATRIX = "VK_KHR_cooperative_matrix"
MEMORY_MODEL = "VK_KHR_vulkan_memory_model"
INT8 = "VK_KHR_shader_float16_int8"
SUBGROUP_SIZE = "VK_EXT_subgroup_size_control"
BUDGET = "VK_EXT_memory_budget"
HOST_MEMORY = "VK_EXT_external_memory_host"
PROCESSORS = "VK_NV_shader_sm_builtins"
_CORE_SINCE = {DOT: 0x403000, SUBGROUP_SIZE: 0x403000, MEMORY_MODEL: 0x402000, INT8: 0x402000}
"""API versions that need the extension's name no longer."""


@dataclass(frozen=True, slots=True)
class Features:
    """False or 0 where the device has none."""

    integer_dot: bool  # packed 4x8 dot products
    matrix: bool  # subgroups of 32 multiply 16 x 16 x 32 bytes to s32 sums
    half_matrix: bool  # and 16 x 16 x 16 halves to f32 sums
    memory_budget: bool
    subgroup_size: int  # as the driver chooses
    subgroups: int  # size that pipelines ask for, with arithmetic and shuffles
    host_alignment: int  # of host memory that may be imported
    resident: int  # workgroups that surely run at the same time

    def chain(self) -> Handle:
        """What VkDeviceCreateInfo.pNext says."""
        chain = ffi().NULL
        if self.integer_dot:
            chain = make("VkPhysicalDeviceShaderIntegerDotProductFeatures", pNext=chain, shaderIntegerDotProduct=1)
        if self.subgroups:
            chain = make(
                "VkPhysicalDeviceSubgroupSizeControlFeatures",
                pNext=chain,
                subgroupSizeControl=1,
                computeFullSubgroups=1,
            )
        if self.matrix or self.half_matrix:
            chain = make("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", pNext=chain, cooperativeMatrix=1)
            chain = make("VkPhysicalDeviceVulkanMemoryModelFeatures", pNext=chain, vulkanMemoryModel=1)
            chain = make(
                "VkPhysicalDeviceShaderFloat16Int8Features",
                pNext=chain,
                shaderInt8=int(self.matrix),
                shaderFloat16=int(self.half_matrix),
            )
        return chain

    def extensions(self) -> list[str]:
        """Names that VkDeviceCreateInfo enables, of those that the device lists."""
        wanted = {
            DOT: self.integer_dot,
            SUBGROUP_SIZE: bool(self.subgroups),
            MATRIX: self.matrix or self.half_matrix,
            MEMORY_MODEL: self.matrix or self.half_matrix,
            INT8: self.matrix or self.half_matrix,
            BUDGET: self.memory_budget,
            HOST_MEMORY: bool(self.host_alignment),
        }
        return [name for name, on in wanted.items() if on]


def probe(instance: Handle, handle: Handle, version: int, extensions: set[str]) -> Features:
    """What a physical device offers."""

    def has(name: str) -> bool:
        return name in extensions or version >= _CORE_SINCE.get(name, 1 << 32)

    def feature(name: str, struct: str) -> Any:
        found = make(struct)
        if has(name):
            lib().vkGetPhysicalDeviceFeatures2(handle, make("VkPhysicalDeviceFeatures2", pNext=found))
        return found

    def properties(name: str, struct: str) -> Any:
        found = make(struct)
        if has(name):
            lib().vkGetPhysicalDeviceProperties2(handle, make("VkPhysicalDeviceProperties2", pNext=found))
        return found

    subgroup = make("VkPhysicalDeviceSubgroupProperties")
    lib().vkGetPhysicalDeviceProperties2(handle, make("VkPhysicalDeviceProperties2", pNext=subgroup))
    compute = constant("VK_SHADER_STAGE_COMPUTE_BIT")
    needed = sum(constant(f"VK_SUBGROUP_FEATURE_{name}_BIT") for name in ("BASIC", "ARITHMETIC", "SHUFFLE"))
    control = feature(SUBGROUP_SIZE, "VkPhysicalDeviceSubgroupSizeControlFeatures")
    sizes = properties(SUBGROUP_SIZE, "VkPhysicalDeviceSubgroupSizeControlProperties")
    sized = control.subgroupSizeControl and control.computeFullSubgroups and sizes.requiredSubgroupSizeStages & compute
    able = subgroup.supportedStages & compute and subgroup.supportedOperations & needed == needed
    subgroups = min(max(32, sizes.minSubgroupSize), sizes.maxSubgroupSize) if sized and able else 0
    small = feature(INT8, "VkPhysicalDeviceShaderFloat16Int8Features")
    able_of_matrices = (
        subgroups == 32
        and feature(MATRIX, "VkPhysicalDeviceCooperativeMatrixFeaturesKHR").cooperativeMatrix
        and feature(MEMORY_MODEL, "VkPhysicalDeviceVulkanMemoryModelFeatures").vulkanMemoryModel
        and properties(MATRIX, "VkPhysicalDeviceCooperativeMatrixPropertiesKHR").cooperativeMatrixSupportedStages
        & compute
    )
    shapes = set(matrix_shapes(instance, handle)) if able_of_matrices else set()
    found = Features(
        integer_dot=bool(feature(DOT, "VkPhysicalDeviceShaderIntegerDotProductFeatures").shaderIntegerDotProduct),
        matrix=bool(small.shaderInt8 and _BYTES in shapes),
        half_matrix=bool(small.shaderFloat16 and _HALVES in shapes),
        memory_budget=BUDGET in extensions,
        subgroup_size=subgroup.subgroupSize,
        subgroups=subgroups,
        host_alignment=int(
            properties(HOST_MEMORY, "VkPhysicalDeviceExternalMemoryHostPropertiesEXT").minImportedHostPointerAlignment
        ),
        resident=int(properties(PROCESSORS, "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV").shaderSMCount),
    )
    return without(found)


_OFF: dict[str, dict[str, Any]] = {
    "dot": {"integer_dot": False},
    "matrix": {"matrix": False},
    "half-matrix": {"half_matrix": False},
    "subgroups": {"subgroups": 0, "matrix": False, "half_matrix": False},
    "import": {"host_alignment": 0},
    "resident": {"resident": 0},
}


def without(features: Features) -> Features:
    """Less what BITNET_VULKAN_WITHOUT names ("all", or some of dot, matrix, half-matrix, subgroups, import, resident):
    to go around a driver's faults, and to test the paths of lesser devices."""
    text = os.environ.get("BITNET_VULKAN_WITHOUT", "")
    names = list(_OFF) if text == "all" else [name for name in text.split(",") if name]
    for name in names:
        if name not in _OFF:
            raise UsageError(f"BITNET_VULKAN_WITHOUT={text}: '{name}' is not one of {', '.join(_OFF)}, all")
        features = replace(features, **_OFF[name])
    return features


_BYTES = (16, 16, 32, 3, 3, 5, 5, 3)
_HALVES = (16, 16, 16, 0, 0, 1, 1, 3)
"""M, N, K, VkComponentTypeKHR of A, B, C and the result, VK_SCOPE_SUBGROUP_KHR: what the matrix kernels multiply."""


def matrix_shapes(instance: Handle, handle: Handle) -> list[tuple[int, ...]]:
    """(M, N, K, types of A, B, C and the result, scope) of every cooperative product of a device that has them."""
    pointer = lib().vkGetInstanceProcAddr(instance, b"vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    if pointer == ffi().NULL:
        return []
    function = ffi().cast("PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", pointer)
    count = ffi().new("uint32_t *")
    function(handle, count, ffi().NULL)
    empty = make("VkCooperativeMatrixPropertiesKHR")
    found = ffi().new("VkCooperativeMatrixPropertiesKHR[]", [empty[0]] * count[0])
    function(handle, count, found)
    return [
        (row.MSize, row.NSize, row.KSize, row.AType, row.BType, row.CType, row.ResultType, row.scope)
        for row in found[0 : count[0]]
    ]
