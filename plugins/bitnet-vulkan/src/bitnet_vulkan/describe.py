"""What each physical device is and can do, and how a logical device asks for it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import Any

from bitnet_core.errors import BackendUnavailableError, DeviceNotFoundError, UsageError
from bitnet_core.hal import DeviceInfo, DeviceType, TransferMode

from bitnet_vulkan.driver import Handle, Instance, ffi, function, lib, make
from bitnet_vulkan.errors import Stage, check

log = logging.getLogger(__name__)

PUSH, DOT, MATRIX = "VK_KHR_push_descriptor", "VK_KHR_shader_integer_dot_product", "VK_KHR_cooperative_matrix"
MEMORY_MODEL, INT8 = "VK_KHR_vulkan_memory_model", "VK_KHR_shader_float16_int8"
SUBGROUP_SIZE, BUDGET, PCI = "VK_EXT_subgroup_size_control", "VK_EXT_memory_budget", "VK_EXT_pci_bus_info"
HOST_MEMORY, PROCESSORS = "VK_EXT_external_memory_host", "VK_NV_shader_sm_builtins"
_CORE_SINCE = {DOT: 0x403000, SUBGROUP_SIZE: 0x403000, MEMORY_MODEL: 0x402000, INT8: 0x402000}
"""API versions that need the extension's name no longer."""
_TYPES = {1: DeviceType.INTEGRATED, 2: DeviceType.GPU, 3: DeviceType.GPU, 4: DeviceType.SOFTWARE}
_DISCRETE = (2, 3)
"""VkPhysicalDeviceType: integrated, discrete, virtual, cpu."""
_VENDORS = {0x1002: "AMD", 0x10DE: "NVIDIA", 0x8086: "Intel", 0x13B5: "ARM", 0x5143: "Qualcomm", 0x106B: "Apple"}
_COMPUTE_STAGE, _BASIC_ARITHMETIC_SHUFFLE, LOCAL_HEAP = 0x20, 0x1 | 0x4 | 0x10, 0x1
"""Bits of VkShaderStageFlags, VkSubgroupFeatureFlags, VkMemoryHeapFlags."""
_BYTES, _HALVES = (16, 16, 32, 3, 3, 5, 5, 3), (16, 16, 16, 0, 0, 1, 1, 3)
"""M, N, K, VkComponentTypeKHR of A, B, C and the result, VK_SCOPE_SUBGROUP_KHR: what the matrix kernels multiply."""


@dataclass(frozen=True, slots=True)
class Features:
    """False or 0 where the device has none."""

    integer_dot: bool  # packed 4x8 dot products
    matrix: bool  # subgroups of 32 multiply 16 x 16 x 32 bytes to s32 sums
    half_matrix: bool  # and 16 x 16 x 16 halves to f32 sums
    memory_budget: bool
    subgroups: int  # size that pipelines ask for, with arithmetic and shuffles
    host_alignment: int  # of host memory that may be imported
    resident: int  # workgroups that surely run at the same time


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """One physical device and the abilities that the plugin uses."""

    handle: Handle
    info: DeviceInfo
    queue_family: int
    features: Features
    extensions: frozenset[str]
    max_allocations: int
    cache_uuid: str
    timestamp_seconds: float  # of one tick; 0 where compute queues have no timestamps

    def asked(self) -> tuple[Handle, list[str]]:
        """pNext and the extensions of VkDeviceCreateInfo."""
        chain, features = ffi().NULL, self.features
        matrices = features.matrix or features.half_matrix
        wanted: list[tuple[str, Any, str, dict[str, int]]] = [
            (PUSH, True, "", {}),
            (BUDGET, features.memory_budget, "", {}),
            (HOST_MEMORY, features.host_alignment, "", {}),
            (DOT, features.integer_dot, "ShaderIntegerDotProduct", {"shaderIntegerDotProduct": 1}),
            (
                SUBGROUP_SIZE,
                features.subgroups,
                "SubgroupSizeControl",
                {"subgroupSizeControl": 1, "computeFullSubgroups": 1},
            ),
            (MATRIX, matrices, "CooperativeMatrix", {"cooperativeMatrix": 1}),
            (MEMORY_MODEL, matrices, "VulkanMemoryModel", {"vulkanMemoryModel": 1}),
            (
                INT8,
                matrices,
                "ShaderFloat16Int8",
                {"shaderInt8": features.matrix, "shaderFloat16": features.half_matrix},
            ),
        ]
        for name, on, struct, fields in wanted:
            if on and struct:
                suffix = "FeaturesKHR" if name == MATRIX else "Features"
                chain = make(f"VkPhysicalDevice{struct}{suffix}", pNext=chain, **fields)
        return chain, [name for name, on, *_ in wanted if on and name in self.extensions]


def physical_devices(instance: Instance) -> list[PhysicalDevice | str]:
    """All devices in the loader's order; of those that cannot be used, the reason."""
    handles = _listed("VkPhysicalDevice", lib().vkEnumeratePhysicalDevices, instance.handle)
    return [_described(instance.handle, handle, index) for index, handle in enumerate(handles)]


def usable(instance: Instance) -> list[DeviceInfo]:
    """The devices that can be used; BackendUnavailableError where there is none."""
    found = physical_devices(instance)
    refused = [device for device in found if isinstance(device, str)]
    for reason in refused:
        log.info("not used: %s", reason)
    if len(refused) == len(found):
        raise BackendUnavailableError(
            "no Vulkan device can be used" + "".join(f"; {reason}" for reason in refused),
            backend="vulkan",
            operation=Stage.DEVICES.value,
            hint="Install a Vulkan driver (Debian: mesa-vulkan-drivers, or the GPU vendor's)",
        )
    return [device.info for device in found if not isinstance(device, str)]


def picked(instance: Instance, index: int) -> PhysicalDevice:
    """The device of this index; DeviceNotFoundError says why it cannot be had."""
    found = physical_devices(instance)
    device = found[index] if 0 <= index < len(found) else "`bitnet devices` lists them"
    if isinstance(device, str):
        raise DeviceNotFoundError(f"there is no device vulkan:{index}", backend="vulkan", hint=device)
    return device


def _listed(kind: str, call: Any, *owner: Handle) -> list[Handle]:
    """What a call gives that first tells how many there are."""
    count = ffi().new("uint32_t *")
    check(call(*owner, count, ffi().NULL) or 0, Stage.DEVICES)
    items = ffi().new(f"{kind}[]", max(1, count[0]))
    check(call(*owner, count, items) or 0, Stage.DEVICES)
    return list(items[0 : count[0]])


def _compute_family(handle: Handle) -> int | None:
    """The queue family for kernels, without graphics where there is one."""
    families = _listed("VkQueueFamilyProperties", lib().vkGetPhysicalDeviceQueueFamilyProperties, handle)
    graphics, compute = 1, 2
    kernels = [i for i, family in enumerate(families) if family.queueFlags & compute]
    alone = [i for i in kernels if not families[i].queueFlags & graphics]
    return next(iter(alone + kernels), None)


def _local_bytes(handle: Handle) -> int:
    memory = make("VkPhysicalDeviceMemoryProperties")
    lib().vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = memory.memoryHeaps[0 : memory.memoryHeapCount]
    return max((int(heap.size) for heap in heaps if heap.flags & LOCAL_HEAP), default=0)


def pci_address(pci: Handle) -> str:
    """As other backends write it, so that one card seen by two of them counts once."""
    return f"{pci.pciDomain:04x}:{pci.pciBus:02x}:{pci.pciDevice:02x}.{pci.pciFunction:x}"


def _text(name: Handle) -> str:
    return str(ffi().string(name).decode(errors="replace"))


def _described(instance: Handle, handle: Handle, index: int) -> PhysicalDevice | str:
    listed = _listed("VkExtensionProperties", lib().vkEnumerateDeviceExtensionProperties, handle, ffi().NULL)
    extensions = frozenset(_text(extension.extensionName) for extension in listed)
    driver = make("VkPhysicalDeviceDriverProperties")
    maintenance = make("VkPhysicalDeviceMaintenance3Properties", pNext=driver)
    identity = make("VkPhysicalDeviceIDProperties", pNext=maintenance)
    pci = make("VkPhysicalDevicePCIBusInfoPropertiesEXT", pNext=identity)
    properties = make("VkPhysicalDeviceProperties2", pNext=pci if PCI in extensions else identity)
    lib().vkGetPhysicalDeviceProperties2(handle, properties)
    base = properties.properties
    limits, version, name = base.limits, base.apiVersion, _text(base.deviceName)
    family = _compute_family(handle)
    memory = _local_bytes(handle)
    if family is None or not memory or PUSH not in extensions or not name:
        lack = {"a name": name, "a compute queue": family is not None, "memory": memory, PUSH: PUSH in extensions}
        return f"vulkan:{index} {name} has not {' and '.join(what for what, there in lack.items() if not there)}"
    features = probe(instance, handle, version, extensions)
    tick = limits.timestampPeriod * 1e-9 if limits.timestampComputeAndGraphics else 0.0
    shared = features.host_alignment and base.deviceType not in _DISCRETE
    info = DeviceInfo(
        backend="vulkan",
        index=index,
        name=name,
        type=_TYPES.get(base.deviceType, DeviceType.GPU),
        vendor=_VENDORS.get(base.vendorID, f"0x{base.vendorID:04x}"),
        driver=f"{_text(driver.driverName)} {_text(driver.driverInfo)}".strip() or f"driver {base.driverVersion}",
        total_memory=memory,
        max_allocation=maintenance.maxMemoryAllocationSize,
        max_binding=limits.maxStorageBufferRange,
        max_grid=tuple(limits.maxComputeWorkGroupCount),
        alignment=max(64, limits.minStorageBufferOffsetAlignment),
        transfer=TransferMode.UNIFIED if shared else TransferMode.EXPLICIT_COPY,
        physical_id=pci_address(pci) if PCI in extensions else bytes(identity.deviceUUID).hex(),
        kernels=offered(features),
        features=frozenset({"tunings", "timings"} if tick else {"tunings"}),
        extra={
            "uuid": bytes(identity.deviceUUID).hex(),
            "api_version": f"{version >> 22}.{(version >> 12) & 1023}.{version & 4095}",
            "integer_dot_product": features.integer_dot,
            "cooperative_matrix": features.matrix,
            "subgroup_size": features.subgroups,
            "shared_memory": limits.maxComputeSharedMemorySize,
        },
    )
    uuid = bytes(base.pipelineCacheUUID).hex()
    allocations = limits.maxMemoryAllocationCount
    return PhysicalDevice(handle, info, family, features, extensions, allocations, uuid, tick)


def offered(features: Features) -> frozenset[str]:
    """Optional kernels."""
    joined = {"norm_matmul", "norm_matmul_glu", "rope_attention", "pack_head", "draft_logits", "rescore_logits"}
    layer = {"decoder_layer"} if features.resident else set()
    return frozenset({"top_k"} | (joined | layer if features.subgroups else set()))


def probe(instance: Handle, handle: Handle, version: int, extensions: frozenset[str]) -> Features:
    """What a physical device offers, less what BITNET_VULKAN_WITHOUT names."""

    def ask(extension: str, struct: str, *, properties: bool = False) -> Any:
        found, kind = make(struct), "Properties2" if properties else "Features2"
        if extension in extensions or version >= _CORE_SINCE.get(extension, 1 << 32):
            outer = make(f"VkPhysicalDevice{kind}", pNext=found)
            getattr(lib(), f"vkGetPhysicalDevice{kind}")(handle, outer)
        return found

    subgroup = make("VkPhysicalDeviceSubgroupProperties")
    lib().vkGetPhysicalDeviceProperties2(handle, make("VkPhysicalDeviceProperties2", pNext=subgroup))
    control = ask(SUBGROUP_SIZE, "VkPhysicalDeviceSubgroupSizeControlFeatures")
    sizes = ask(SUBGROUP_SIZE, "VkPhysicalDeviceSubgroupSizeControlProperties", properties=True)
    sized = control.subgroupSizeControl and control.computeFullSubgroups
    able = subgroup.supportedOperations & _BASIC_ARITHMETIC_SHUFFLE == _BASIC_ARITHMETIC_SHUFFLE
    stages = subgroup.supportedStages & sizes.requiredSubgroupSizeStages & _COMPUTE_STAGE
    subgroups = min(max(32, sizes.minSubgroupSize), sizes.maxSubgroupSize) if sized and able and stages else 0
    subgroups *= subgroups >= 8  # eight neighbours share 32 columns
    small = ask(INT8, "VkPhysicalDeviceShaderFloat16Int8Features")
    able_of_matrices = (
        subgroups == 32
        and ask(MATRIX, "VkPhysicalDeviceCooperativeMatrixFeaturesKHR").cooperativeMatrix
        and ask(MEMORY_MODEL, "VkPhysicalDeviceVulkanMemoryModelFeatures").vulkanMemoryModel
    )
    shapes = matrix_shapes(instance, handle) if able_of_matrices else []
    host = ask(HOST_MEMORY, "VkPhysicalDeviceExternalMemoryHostPropertiesEXT", properties=True)
    processors = ask(PROCESSORS, "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", properties=True)
    dot = ask(DOT, "VkPhysicalDeviceShaderIntegerDotProductFeatures")
    found = Features(
        integer_dot=bool(dot.shaderIntegerDotProduct),
        matrix=bool(small.shaderInt8 and _BYTES in shapes),
        half_matrix=bool(small.shaderFloat16 and _HALVES in shapes),
        memory_budget=BUDGET in extensions,
        subgroups=subgroups,
        host_alignment=int(host.minImportedHostPointerAlignment),
        resident=int(processors.shaderSMCount),
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
    for name in list(_OFF) if text == "all" else [name for name in text.split(",") if name]:
        if name not in _OFF:
            raise UsageError(f"BITNET_VULKAN_WITHOUT={text}: '{name}' is not one of {', '.join(_OFF)}, all")
        features = replace(features, **_OFF[name])
    return features


def matrix_shapes(instance: Handle, handle: Handle) -> list[tuple[int, ...]]:
    """(M, N, K, types of A, B, C and the result, scope) of every cooperative product of a device that has them."""
    listing = function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", instance)
    if listing is None:
        return []
    count, empty = ffi().new("uint32_t *"), make("VkCooperativeMatrixPropertiesKHR")
    listing(handle, count, ffi().NULL)
    rows = ffi().new("VkCooperativeMatrixPropertiesKHR[]", [empty[0]] * count[0])
    listing(handle, count, rows)
    names = ("MSize", "NSize", "KSize", "AType", "BType", "CType", "ResultType", "scope")
    return [tuple(getattr(row, name) for name in names) for row in rows[0 : count[0]]]
