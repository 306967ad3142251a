"""What each physical device is and can do, and how a logical device asks for it."""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bitnet_core.errors import BackendUnavailableError, UsageError
from bitnet_core.hal import DeviceInfo, DeviceType, TransferMode
from bitnet_core.hal.failures import failure
from bitnet_core.hal.found import Handled

from bitnet_vulkan.driver import Handle, Logical, create, ffi, function, instance, lib, listed, make, plain
from bitnet_vulkan.errors import BACKEND

log = logging.getLogger(__name__)

KNOWN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("devices.toml").read_text("utf-8"))
ABILITIES = ("dot", "subgroups", "matrix", "half-matrix", "import", "resident")
"""Keys of DeviceInfo.extra, 0 where the device has not: packed 4x8 dot products; the size of subgroups that pipelines
ask for, with arithmetic and shuffles; subgroups of 32 that multiply 16 x 16 x 32 bytes to s32 sums, and 16 x 16 x 16
halves to f32 sums; alignment of host memory that may be imported; workgroups that surely run at the same time."""
_DISCRETE = (2, 3)
"""VkPhysicalDeviceType: discrete, virtual."""
PUSH, PCI = "VK_KHR_push_descriptor", "VK_EXT_pci_bus_info"
_COMPUTE_STAGE, _BASIC_ARITHMETIC_SHUFFLE, _LOCAL_HEAP, _COMPUTE_QUEUE, _GRAPHICS_QUEUE = (
    0x20,
    0x1 | 0x4 | 0x10,
    1,
    2,
    1,
)
"""Bits of VkShaderStageFlags, VkSubgroupFeatureFlags, VkMemoryHeapFlags, VkQueueFlags."""


def device_infos() -> list[DeviceInfo]:
    """Of all devices that can be used; BackendUnavailableError says what is missing."""
    with instance() as made:
        return [device.info for device in usable(made)]


def usable(instance: Handle) -> list[Handled]:
    """Devices; BackendUnavailableError if none can be used, which says why. One that is left out keeps its index."""
    found, refused = list[Handled](), list[str]()
    for index, handle in enumerate(listed("VkPhysicalDevice", lib().vkEnumeratePhysicalDevices, instance)):
        about = told(handle, "Properties")
        name = about["properties"]["deviceName"]
        there = {"a name": name, "a compute queue": _families(handle), "memory": local_heaps(handle)}
        if lack := [what for what, one in {**there, PUSH: PUSH in extensions(handle)}.items() if not one]:
            refused.append(f"vulkan:{index} {name} has not {' and '.join(lack)}")
            log.info("not used: %s", refused[-1])
        else:
            found.append(Handled(handle, _described(handle, index, about, abilities(instance, handle, about))))
    if not found:
        said = "; ".join(["no Vulkan device can be used", *refused])
        hint = "Install a Vulkan driver (Debian: mesa-vulkan-drivers, or the GPU vendor's)"
        raise failure(BackendUnavailableError, "list devices", backend=BACKEND, said=said, hint=hint)
    return found


def extensions(handle: Handle) -> set[str]:
    """That a physical device has."""
    found = listed("VkExtensionProperties", lib().vkEnumerateDeviceExtensionProperties, handle, ffi().NULL)
    return {extension["extensionName"] for extension in found}


def told(handle: Handle, kind: str) -> dict[str, Any]:
    """The fields of all structs of this kind in devices.toml; zeros where the device does not know a struct."""
    base, named, chain = make("VkPhysicalDeviceProperties"), extensions(handle), ffi().NULL
    lib().vkGetPhysicalDeviceProperties(handle, base)
    structs = {name: make(name) for name in KNOWN[kind]}
    for name, needs in KNOWN[kind].items():
        if needs.get("extension") in {None, *named} or base.apiVersion >= needs.get("version", 1 << 32):
            structs[name].pNext, chain = chain, structs[name]
    outer = make(f"VkPhysicalDevice{kind}2", pNext=chain)
    getattr(lib(), f"vkGetPhysicalDevice{kind}2")(handle, outer)
    return {name: value for struct in (*structs.values(), outer) for name, value in plain(struct[0]).items()}


def _families(handle: Handle) -> list[int]:
    """The queue families for kernels, first those without graphics."""
    families = listed("VkQueueFamilyProperties", lib().vkGetPhysicalDeviceQueueFamilyProperties, handle)
    kernels = [i for i, family in enumerate(families) if family["queueFlags"] & _COMPUTE_QUEUE]
    return sorted(kernels, key=lambda i: families[i]["queueFlags"] & _GRAPHICS_QUEUE)


def local_heaps(handle: Handle) -> list[tuple[int, int, int]]:
    """Of device-local memory: bytes, and how many the program may use and uses, 0 where the driver does not tell."""
    about = told(handle, "MemoryProperties")
    heaps = zip(about["memoryProperties"]["memoryHeaps"], about["heapBudget"], about["heapUsage"], strict=True)
    return [(heap["size"], budget, usage) for heap, budget, usage in heaps if heap["flags"] & _LOCAL_HEAP]


def matrix_shapes(instance: Handle, handle: Handle) -> list[dict[str, int]]:
    """The cooperative products of a device that has them."""
    call = function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", instance)
    return listed("VkCooperativeMatrixPropertiesKHR", call, handle) if call else []


def abilities(instance: Handle, handle: Handle, about: Mapping[str, Any]) -> dict[str, int]:
    """By name in ABILITIES, less what BITNET_VULKAN_WITHOUT names. about: told properties."""
    has, off = told(handle, "Features"), left_out()
    sized = has["subgroupSizeControl"] and has["computeFullSubgroups"] and "subgroups" not in off
    able = about["supportedOperations"] & _BASIC_ARITHMETIC_SHUFFLE == _BASIC_ARITHMETIC_SHUFFLE
    stages = about["supportedStages"] & about["requiredSubgroupSizeStages"] & _COMPUTE_STAGE
    size = min(max(32, about["minSubgroupSize"]), about["maxSubgroupSize"])
    subgroups = size if sized and able and stages and size >= 8 else 0  # eight neighbours share 32 columns
    matrices = subgroups == 32 and has["cooperativeMatrix"] and has["vulkanMemoryModel"]
    shapes, known = matrix_shapes(instance, handle) if matrices else [], KNOWN["matrices"]
    products = {name for name, shape in known.items() if any(shape.items() <= one.items() for one in shapes)}
    found = {
        "dot": has["shaderIntegerDotProduct"],
        "subgroups": subgroups,
        "matrix": has["shaderInt8"] and "matrix" in products,
        "half-matrix": has["shaderFloat16"] and "half-matrix" in products,
        "import": about["minImportedHostPointerAlignment"],
        "resident": about["shaderSMCount"],
    }
    return {name: 0 if name in off else int(value) for name, value in found.items()}


def left_out() -> set[str]:
    """What BITNET_VULKAN_WITHOUT names ("all", or some of ABILITIES), to go around a driver's faults, and to test the
    paths of lesser devices. UsageError for another word."""
    text = os.environ.get("BITNET_VULKAN_WITHOUT", "")
    names = set(ABILITIES) if text == "all" else set(text.split(",")) - {""}
    for name in names - set(ABILITIES):
        raise UsageError(f"BITNET_VULKAN_WITHOUT={text}: '{name}' is not one of {', '.join(ABILITIES)}, all")
    return names


def offered(able: Mapping[str, Any]) -> frozenset[str]:
    """Optional kernels of a device with such abilities."""
    kernels = KNOWN["kernels"]
    joined = [kernels["subgroups"], *([kernels["resident"]] if able["resident"] else [])] if able["subgroups"] else []
    return frozenset(sum(joined, kernels["always"]))


def pci_address(about: Mapping[str, Any]) -> str:
    """As other backends write it, so that one card seen by two of them counts once."""
    return f"{about['pciDomain']:04x}:{about['pciBus']:02x}:{about['pciDevice']:02x}.{about['pciFunction']:x}"


def _described(handle: Handle, index: int, about: Mapping[str, Any], able: dict[str, int]) -> DeviceInfo:
    base, uuid = about["properties"], bytes(about["deviceUUID"]).hex()
    limits, version = base["limits"], base["apiVersion"]
    kind = DeviceType(KNOWN["types"].get(str(base["deviceType"]), "gpu"))
    timed, shared = limits["timestampComputeAndGraphics"], able["import"] and base["deviceType"] not in _DISCRETE
    extra: dict[str, Any] = able | {
        "uuid": uuid,
        "api_version": f"{version >> 22}.{(version >> 12) & 1023}.{version & 4095}",
        "shared_memory": limits["maxComputeSharedMemorySize"],
        "max_allocations": limits["maxMemoryAllocationCount"],
        "pipeline_cache": bytes(base["pipelineCacheUUID"]).hex(),
        "queue_family": _families(handle)[0],
        "tick_ns": limits["timestampPeriod"],
    }
    return DeviceInfo(
        backend=BACKEND,
        index=index,
        name=base["deviceName"],
        type=kind,
        vendor=KNOWN["vendors"].get(f"{base['vendorID']:04x}", f"0x{base['vendorID']:04x}"),
        driver=f"{about['driverName']} {about['driverInfo']}".strip() or f"driver {base['driverVersion']}",
        total_memory=max(heap[0] for heap in local_heaps(handle)),
        max_allocation=about["maxMemoryAllocationSize"],
        max_binding=limits["maxStorageBufferRange"],
        max_grid=tuple(limits["maxComputeWorkGroupCount"]),
        alignment=max(64, limits["minStorageBufferOffsetAlignment"]),
        transfer=TransferMode.UNIFIED if shared else TransferMode.EXPLICIT_COPY,
        physical_id=pci_address(about) if PCI in extensions(handle) else uuid,
        kernels=offered(able),
        features=frozenset({"tunings", "timings"} if timed else {"tunings"}),
        extra=MappingProxyType(extra),
    )


def logical(physical: Handled) -> Logical:
    """A device with one queue, the extensions that devices.toml names, and the features."""
    handle, info = physical
    has, chain = told(handle, "Features"), ffi().NULL
    for struct, row in KNOWN["Features"].items():
        if any(has[field] for field in row["fields"]):
            chain = make(struct, pNext=chain, **{field: has[field] for field in row["fields"]})
    known = {
        row.get("extension") for kind in ("Properties", "MemoryProperties", "Features") for row in KNOWN[kind].values()
    }
    names = sorted(extensions(handle) & {PUSH, *known})
    queue = {"queueFamilyIndex": info.extra["queue_family"], "queueCount": 1, "pQueuePriorities": [1.0]}
    wanted: dict[str, Any] = {"pNext": chain, "queueCreateInfoCount": 1, "pQueueCreateInfos": [queue]}
    wanted |= {"enabledExtensionCount": len(names), "ppEnabledExtensionNames": names}
    return Logical(create("Device", handle, operation="open", device=info.name, **wanted), info.name)
