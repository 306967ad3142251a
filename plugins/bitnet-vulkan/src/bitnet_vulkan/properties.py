"""Queries of a physical device by chains of structs, and the logical device created with their features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bitnet_hal.plugin import EnumeratedDevice, Handle

from bitnet_vulkan.driver import Logical, instance, vk

LIST_DEVICES = "list devices"
PUSH_DESCRIPTOR = "VK_KHR_push_descriptor"
PCI_BUS_INFO = "VK_EXT_pci_bus_info"
VULKAN_1_2 = 0x402000
VULKAN_1_3 = 0x403000
_LOCAL_HEAP = 1  # VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
_GRAPHICS_QUEUE = 1  # VkQueueFlagBits
_COMPUTE_QUEUE = 2


@dataclass(frozen=True, slots=True)
class QueryStruct:
    """A struct that extends a query; its extension, or the API version that includes that, must be present.

    features: groups of features that are enabled together, if the device has all of a group.
    """

    name: str
    extension: str = ""
    core_version: int | None = None
    features: tuple[tuple[str, ...], ...] = ()

    def known(self, extensions: set[str], version: int) -> bool:
        """Return whether a device with these extensions and this API version accepts the struct."""
        if not self.extension or self.extension in extensions:
            return True
        return self.core_version is not None and version >= self.core_version


PROPERTIES = (
    QueryStruct("VkPhysicalDeviceDriverProperties"),
    QueryStruct("VkPhysicalDeviceIDProperties"),
    QueryStruct("VkPhysicalDeviceMaintenance3Properties"),
    QueryStruct("VkPhysicalDeviceSubgroupProperties"),
    QueryStruct("VkPhysicalDevicePCIBusInfoPropertiesEXT", PCI_BUS_INFO),
    QueryStruct("VkPhysicalDeviceSubgroupSizeControlProperties", "VK_EXT_subgroup_size_control", VULKAN_1_3),
    QueryStruct("VkPhysicalDeviceExternalMemoryHostPropertiesEXT", "VK_EXT_external_memory_host"),
    QueryStruct("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", "VK_NV_shader_sm_builtins"),
)
MEMORY_PROPERTIES = (QueryStruct("VkPhysicalDeviceMemoryBudgetPropertiesEXT", "VK_EXT_memory_budget"),)
FEATURES = (
    QueryStruct(
        "VkPhysicalDeviceShaderIntegerDotProductFeatures",
        "VK_KHR_shader_integer_dot_product",
        VULKAN_1_3,
        (("shaderIntegerDotProduct",),),
    ),
    QueryStruct(
        "VkPhysicalDeviceSubgroupSizeControlFeatures",
        "VK_EXT_subgroup_size_control",
        VULKAN_1_3,
        (("subgroupSizeControl", "computeFullSubgroups"),),
    ),
    QueryStruct(
        "VkPhysicalDeviceCooperativeMatrixFeaturesKHR",
        "VK_KHR_cooperative_matrix",
        features=(("cooperativeMatrix",),),
    ),
    QueryStruct(
        "VkPhysicalDeviceVulkanMemoryModelFeatures",
        "VK_KHR_vulkan_memory_model",
        VULKAN_1_2,
        # with the memory model on, the barriers of device scope in other kernels need the second feature
        (("vulkanMemoryModel", "vulkanMemoryModelDeviceScope"),),
    ),
    QueryStruct(
        "VkPhysicalDeviceShaderFloat16Int8Features",
        "VK_KHR_shader_float16_int8",
        VULKAN_1_2,
        (("shaderInt8",), ("shaderFloat16",)),
    ),
)


def query_properties(device: Handle) -> dict[str, Any]:
    """Return every field of the structs above and of those nested in them; 0 if the device does not know the struct.

    Added to them: extensions, a set of names; families, the indices of the queue families that compute, those without
    graphics first; heaps, a (bytes, budget, usage) for each heap of device-local memory, in which budget and usage are
    0 if the driver does not report them.
    """
    extensions = {
        extension["extensionName"]
        for extension in vk().listed("vkEnumerateDeviceExtensionProperties", LIST_DEVICES, device, vk().null)
    }
    version = vk().given("vkGetPhysicalDeviceProperties", LIST_DEVICES, device)["apiVersion"]
    about: dict[str, Any] = {"extensions": extensions}
    for kind, structs in (
        ("Properties", PROPERTIES),
        ("MemoryProperties", MEMORY_PROPERTIES),
        ("Features", FEATURES),
    ):
        known = {struct.name for struct in structs if struct.known(extensions, version)}
        about |= _query(device, kind, [struct.name for struct in structs], known)
    about |= about["properties"] | about["properties"]["limits"] | about["memoryProperties"]
    about["families"] = _compute_families(device)
    about["heaps"] = _local_heaps(about)
    return about


def _query(device: Handle, kind: str, names: list[str], known: set[str]) -> dict[str, Any]:
    """Call vkGetPhysicalDevice{kind}2 with a chain of the known structs, and return the fields of all of them."""
    structs = {name: vk().make(name) for name in names}
    chain = vk().null
    for name in names:
        if name in known:
            structs[name].pNext = chain
            chain = structs[name]
    outer = vk().make(f"VkPhysicalDevice{kind}2", pNext=chain)
    vk().call(f"vkGetPhysicalDevice{kind}2", LIST_DEVICES, device, outer)
    fields: dict[str, Any] = {}
    for struct in (outer, *structs.values()):
        fields |= vk().plain(struct[0])
    return fields


def _compute_families(device: Handle) -> list[int]:
    flags = [
        family["queueFlags"] for family in vk().listed("vkGetPhysicalDeviceQueueFamilyProperties", LIST_DEVICES, device)
    ]
    compute = [index for index, bits in enumerate(flags) if bits & _COMPUTE_QUEUE]
    return sorted(compute, key=lambda index: flags[index] & _GRAPHICS_QUEUE)


def _local_heaps(about: dict[str, Any]) -> list[tuple[int, int, int]]:
    heaps = zip(about["memoryHeaps"], about["heapBudget"], about["heapUsage"], strict=True)
    return [(heap["size"], budget, usage) for heap, budget, usage in heaps if heap["flags"] & _LOCAL_HEAP]


def physical_devices() -> list[Handle]:
    """Return the handles of all devices of all drivers."""
    return vk().listed("vkEnumeratePhysicalDevices", LIST_DEVICES, instance())


def create_logical(physical: EnumeratedDevice) -> Logical:
    """Create a device with one queue, and the extensions and features above that the physical device has."""
    about = query_properties(physical.handle)
    chain = vk().null
    for struct in FEATURES:
        complete = [group for group in struct.features if all(about[name] for name in group)]
        if complete:
            enabled = {name: 1 for group in complete for name in group}
            chain = vk().make(struct.name, pNext=chain, **enabled)
    used = {PUSH_DESCRIPTOR, *(struct.extension for struct in (*PROPERTIES, *MEMORY_PROPERTIES, *FEATURES))}
    create_info = {
        "pNext": chain,
        "ppEnabledExtensionNames": sorted(about["extensions"] & used),
        "pQueueCreateInfos": [{"queueFamilyIndex": physical.info.extra["queue_family"]}],
    }
    return Logical(vk().given("vkCreateDevice", "open", physical.handle, create_info, vk().null))
