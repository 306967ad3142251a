"""What each physical device is and can do, and how a logical device asks for it."""

from __future__ import annotations

import os
from typing import Any

from bitnet_hal.errors import BackendUnavailableError, UsageError
from bitnet_hal.plugin import (
    DeviceInfo,
    DeviceType,
    EnumeratedDevice,
    Handle,
    TransferMode,
    failure,
    filter_devices,
    pci_address,
    table,
)

from bitnet_vulkan.driver import BACKEND, Logical, function, instance, vk

KNOWN = table(__file__, "devices.toml")
ABILITIES = tuple(KNOWN["abilities"])
LIST, PUSH, PCI = "list devices", "VK_KHR_push_descriptor", "VK_EXT_pci_bus_info"
PCI_PARTS = "pciDomain", "pciBus", "pciDevice", "pciFunction"
_LOCAL_HEAP, _GRAPHICS_QUEUE, _COMPUTE_QUEUE = 1, 1, 2  # bits of VkMemoryHeapFlags and VkQueueFlags
_NVIDIA = 4  # VK_DRIVER_ID_NVIDIA_PROPRIETARY, which has a matrix's elements where matrix.glsl says


def usable() -> list[EnumeratedDevice]:
    """Devices; BackendUnavailableError if none can be used, which says why. One that is left out keeps its index."""
    found, refused = filter_devices(vk().listed("vkEnumeratePhysicalDevices", LIST, instance()), BACKEND, _described)
    if not found:
        said = "; ".join(["no Vulkan device can be used", *refused])
        hint = "Install a Vulkan driver (Debian: mesa-vulkan-drivers, or the GPU vendor's)"
        raise failure(BackendUnavailableError, LIST, backend=BACKEND, said=said, hint=hint)
    return found


def told(handle: Handle) -> dict[str, Any]:
    """The fields of all structs in devices.toml and of those within, zeros where the device does not know a struct;
    extensions: their names; families: of queues for kernels, first those without graphics; heaps: of device-local
    memory, (bytes, how many the program may use, and uses: zeros where the driver does not tell)."""
    named = vk().listed("vkEnumerateDeviceExtensionProperties", LIST, handle, vk().null)
    about: dict[str, Any] = {"extensions": {one["extensionName"] for one in named}}
    version = vk().given("vkGetPhysicalDeviceProperties", LIST, handle)["apiVersion"]
    for kind, structs in KNOWN["structs"].items():
        made, chain = {name: vk().make(name) for name in structs}, vk().null
        for name, needs in structs.items():
            if needs.get("extension") in {None, *about["extensions"]} or version >= needs.get("version", 1 << 32):
                made[name].pNext, chain = chain, made[name]
        outer = vk().make(f"VkPhysicalDevice{kind}2", pNext=chain)
        vk().call(f"vkGetPhysicalDevice{kind}2", LIST, handle, outer)
        for struct in (outer, *made.values()):
            about |= vk().plain(struct[0])
    about |= about["properties"] | about["properties"]["limits"] | about["memoryProperties"]
    queues = vk().listed("vkGetPhysicalDeviceQueueFamilyProperties", LIST, handle)
    families = [i for i, queue in enumerate(queues) if queue["queueFlags"] & _COMPUTE_QUEUE]
    about["families"] = sorted(families, key=lambda i: queues[i]["queueFlags"] & _GRAPHICS_QUEUE)
    sizes = zip(about["memoryHeaps"], about["heapBudget"], about["heapUsage"], strict=True)
    about["heaps"] = [(heap["size"], budget, usage) for heap, budget, usage in sizes if heap["flags"] & _LOCAL_HEAP]
    return about


def abilities(handle: Handle, about: dict[str, Any]) -> dict[str, int]:
    """By name in ABILITIES, 0 where the device has not, or BITNET_VULKAN_WITHOUT names it."""
    off, able = left_out(), {"import": about["minImportedHostPointerAlignment"], "resident": about["shaderSMCount"]}
    for name, needs in KNOWN["needs"].items():
        able[name] = all(about[field] & bits == bits for field, bits in needs.items())
    size = min(max(32, about["minSubgroupSize"]), about["maxSubgroupSize"])
    able["subgroups"] *= size if size >= 8 and "subgroups" not in off else 0  # eight neighbours share 32 columns
    able["resident"] *= bool(able["subgroups"])
    known = about["driverID"] == _NVIDIA and able["subgroups"] == 32
    matrices = known and (able["matrix"] or able["half-matrix"])
    call = function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR") if matrices else None
    products = vk().listed(call, LIST, handle) if call else []
    for name, shape in KNOWN["shapes"].items():
        able[name] *= any(shape.items() <= one.items() for one in products)
    return {name: 0 if name in off else int(able[name]) for name in ABILITIES}


def left_out() -> set[str]:
    """What BITNET_VULKAN_WITHOUT names ("all", or some of ABILITIES), to go around a driver's faults, and to test the
    paths of lesser devices. UsageError for another word."""
    text = os.environ.get("BITNET_VULKAN_WITHOUT", "")
    names = {name.strip() for name in text.split(",")} - {""}
    if names == {"all"}:
        return set(ABILITIES)
    for name in names - set(ABILITIES):
        raise UsageError(f"BITNET_VULKAN_WITHOUT={text}: '{name}' is not one of {', '.join(ABILITIES)}, all")
    return names


def offered(section: str, able: dict[str, Any]) -> frozenset[str]:
    """Optional kernels, or features, of a device with such abilities."""
    return frozenset(name for name, ability in KNOWN[section].items() if not ability or able[ability])


def _described(handle: Handle, index: int) -> EnumeratedDevice | str:
    about = told(handle)
    name, push, families = about["deviceName"], PUSH in about["extensions"], about["families"]
    there = {"a name": name, "a compute queue": families, "memory": about["heaps"], PUSH: push}
    if lack := [what for what, one in there.items() if not one]:
        return f"vulkan:{index} {name} has not {' and '.join(lack)}"
    able, uuid, version = abilities(handle, about), bytes(about["deviceUUID"]).hex(), about["apiVersion"]
    kind = DeviceType(KNOWN["types"].get(str(about["deviceType"]), "gpu"))
    extra = {
        **able,
        **{name: about[limit] for name, limit in KNOWN["extra"].items()},
        "uuid": uuid,
        "api_version": f"{version >> 22}.{(version >> 12) & 1023}.{version & 4095}",
        "pipeline_cache": bytes(about["pipelineCacheUUID"]).hex(),
        "queue_family": families[0],
    }
    info = DeviceInfo(
        backend=BACKEND,
        index=index,
        **{field: about[name] for field, name in KNOWN["info"].items()},
        type=kind,
        vendor=KNOWN["vendors"].get(f"{about['vendorID']:04x}", f"0x{about['vendorID']:04x}"),
        driver=f"{about['driverName']} {about['driverInfo']}".strip() or f"driver {about['driverVersion']}",
        total_memory=max(size for size, *_ in about["heaps"]),
        max_grid=tuple(about["maxComputeWorkGroupCount"]),
        alignment=max(64, about["minStorageBufferOffsetAlignment"]),
        transfer=TransferMode.UNIFIED if able["import"] and kind is not DeviceType.GPU else TransferMode.EXPLICIT_COPY,
        physical_id=pci_address(*(about[part] for part in PCI_PARTS)) if PCI in about["extensions"] else uuid,
        kernels=offered("kernels", able),
        features=offered("features", {**about, **able}),
        extra=extra,
    )
    return EnumeratedDevice(handle, info)


def logical(physical: EnumeratedDevice) -> Logical:
    """A device with one queue, and the extensions and features that devices.toml names."""
    handle, info = physical
    about, chain = told(handle), vk().null
    for struct, row in KNOWN["structs"]["Features"].items():
        if on := [name for group in row["features"] if all(about[name] for name in group) for name in group]:
            chain = vk().make(struct, pNext=chain, **dict.fromkeys(on, 1))
    known = {row.get("extension") for structs in KNOWN["structs"].values() for row in structs.values()}
    wanted = {"pNext": chain, "ppEnabledExtensionNames": sorted(about["extensions"] & {PUSH, *known})}
    wanted["pQueueCreateInfos"] = [{"queueFamilyIndex": info.extra["queue_family"]}]
    return Logical(vk().given("vkCreateDevice", "open", handle, wanted, vk().null))
