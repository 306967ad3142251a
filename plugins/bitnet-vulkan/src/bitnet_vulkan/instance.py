"""The Vulkan instance, its validation layer, and what each physical device can do."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal import DeviceInfo, DeviceType, TransferMode

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make
from bitnet_vulkan.errors import Stage, check
from bitnet_vulkan.features import Features, probe

logger = logging.getLogger(__name__)

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
_PCI_EXTENSION = "VK_EXT_pci_bus_info"
_TYPES = {1: DeviceType.INTEGRATED, 2: DeviceType.GPU, 3: DeviceType.GPU, 4: DeviceType.SOFTWARE}
_DISCRETE = (2, 3)
"""VkPhysicalDeviceType: integrated, discrete, virtual, cpu."""
_VENDORS = {0x1002: "AMD", 0x10DE: "NVIDIA", 0x8086: "Intel", 0x13B5: "ARM", 0x5143: "Qualcomm", 0x106B: "Apple"}


def validation_wanted() -> bool:
    """BITNET_VULKAN_VALIDATE=1 turns validation with synchronization checks on."""
    return os.environ.get("BITNET_VULKAN_VALIDATE", "").lower() in {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """One physical device and the abilities that the plugin uses."""

    handle: Handle
    info: DeviceInfo
    queue_family: int
    copy_family: int | None  # of a copy engine
    features: Features
    max_allocations: int
    cache_uuid: str
    timestamp_seconds: float  # of one tick; 0 where compute queues have no timestamps


class Instance:
    """A VkInstance; closing it ends everything made from it.

    validate: use the validation layer with synchronization checks; None leaves it to BITNET_VULKAN_VALIDATE.
    """

    def __init__(self, validate: bool | None = None) -> None:
        validate = validation_wanted() if validate is None else validate
        self._messenger: Handle | None = None
        layers = [name for name in os.environ.get("VK_INSTANCE_LAYERS", "").split(os.pathsep) if name]
        chain, extensions = ffi().NULL, []
        if validate:
            layers = list(dict.fromkeys([*layers, VALIDATION_LAYER]))
            extensions = ["VK_EXT_debug_utils", "VK_EXT_validation_features"]
            wanted = constant("VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT")
            chain = make(
                "VkValidationFeaturesEXT", enabledValidationFeatureCount=1, pEnabledValidationFeatures=[wanted]
            )
        version = ffi().new("uint32_t *")
        lib().vkEnumerateInstanceVersion(version)
        application = make(
            "VkApplicationInfo", pApplicationName="bitnet", pEngineName="bitnet", apiVersion=min(version[0], 0x403000)
        )
        create = make(
            "VkInstanceCreateInfo",
            pNext=chain,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layers,
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=extensions,
        )
        handle = ffi().new("VkInstance *")
        check(lib().vkCreateInstance(create, ffi().NULL, handle), Stage.INSTANCE_CREATION)
        self.handle = handle[0]
        if validate:
            self._listen()

    def _function(self, name: str) -> Any:
        pointer = lib().vkGetInstanceProcAddr(self.handle, name.encode())
        return ffi().cast(f"PFN_{name}", pointer)

    def _listen(self) -> None:
        """Every validation message becomes a logged error."""

        @ffi().callback("PFN_vkDebugUtilsMessengerCallbackEXT")  # type: ignore[untyped-decorator]  # cffi has no types
        def report(severity: int, kind: int, data: Handle, user: Handle) -> int:
            logger.error("validation: %s", ffi().string(data.pMessage).decode(errors="replace"))
            return 0

        self._report = report
        severities = ("WARNING", "ERROR")
        create = make(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=sum(constant(f"VK_DEBUG_UTILS_MESSAGE_SEVERITY_{name}_BIT_EXT") for name in severities),
            messageType=7,
            pfnUserCallback=report,
        )
        handle = ffi().new("VkDebugUtilsMessengerEXT *")
        make_messenger = self._function("vkCreateDebugUtilsMessengerEXT")
        check(make_messenger(self.handle, create, ffi().NULL, handle), Stage.INSTANCE_CREATION)
        self._messenger = handle[0]

    def physical_devices(self) -> list[PhysicalDevice]:
        """All devices with a compute queue, in the loader's order."""
        count = ffi().new("uint32_t *")
        check(lib().vkEnumeratePhysicalDevices(self.handle, count, ffi().NULL), Stage.NO_DEVICE)
        handles = ffi().new("VkPhysicalDevice[]", max(1, count[0]))
        check(lib().vkEnumeratePhysicalDevices(self.handle, count, handles), Stage.NO_DEVICE)
        found: list[PhysicalDevice] = []
        for handle in handles[0 : count[0]]:
            family, copies = _families(handle)
            if family is not None:
                found.append(_describe(self.handle, handle, len(found), family, copies))
        if not found:
            raise BackendUnavailableError(
                "the Vulkan loader finds no device with a compute queue",
                backend="vulkan",
                operation=Stage.NO_DEVICE.value,
                hint="Install a Vulkan driver (Debian: mesa-vulkan-drivers, or the GPU vendor's)",
            )
        return found

    def close(self) -> None:
        """Destroy the instance; may be called twice."""
        if self.handle is None:
            return
        if self._messenger is not None:
            self._function("vkDestroyDebugUtilsMessengerEXT")(self.handle, self._messenger, ffi().NULL)
        lib().vkDestroyInstance(self.handle, ffi().NULL)
        self.handle = None

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _families(handle: Handle) -> tuple[int | None, int | None]:
    """The queue families for kernels, without graphics where there is one, and for copies alone."""
    count = ffi().new("uint32_t *")
    lib().vkGetPhysicalDeviceQueueFamilyProperties(handle, count, ffi().NULL)
    families = ffi().new("VkQueueFamilyProperties[]", count[0])
    lib().vkGetPhysicalDeviceQueueFamilyProperties(handle, count, families)
    graphics, compute, copies = (constant(f"VK_QUEUE_{name}_BIT") for name in ("GRAPHICS", "COMPUTE", "TRANSFER"))
    flags = [int(family.queueFlags) for family in families[0 : count[0]]]
    kernels = [i for i, has in enumerate(flags) if has & compute]
    engines = [i for i, has in enumerate(flags) if has & copies and not has & (compute | graphics)]
    alone = [i for i in kernels if not flags[i] & graphics]
    return next(iter(alone + kernels), None), next(iter(engines), None)


def _extensions(handle: Handle) -> set[str]:
    count = ffi().new("uint32_t *")
    lib().vkEnumerateDeviceExtensionProperties(handle, ffi().NULL, count, ffi().NULL)
    properties = ffi().new("VkExtensionProperties[]", max(1, count[0]))
    lib().vkEnumerateDeviceExtensionProperties(handle, ffi().NULL, count, properties)
    return {ffi().string(properties[i].extensionName).decode() for i in range(count[0])}


def _device_memory(handle: Handle) -> int:
    memory = ffi().new("VkPhysicalDeviceMemoryProperties *")
    lib().vkGetPhysicalDeviceMemoryProperties(handle, memory)
    local = constant("VK_MEMORY_HEAP_DEVICE_LOCAL_BIT")
    return max(int(heap.size) for heap in memory.memoryHeaps[0 : memory.memoryHeapCount] if heap.flags & local)


def pci_address(pci: Handle) -> str:
    """As other backends write it, so that one card seen by two of them counts once."""
    return f"{pci.pciDomain:04x}:{pci.pciBus:02x}:{pci.pciDevice:02x}.{pci.pciFunction:x}"


def _describe(instance: Handle, handle: Handle, index: int, family: int, copies: int | None) -> PhysicalDevice:
    driver = make("VkPhysicalDeviceDriverProperties")
    maintenance = make("VkPhysicalDeviceMaintenance3Properties", pNext=driver)
    identity = make("VkPhysicalDeviceIDProperties", pNext=maintenance)
    extensions = _extensions(handle)
    has_pci = _PCI_EXTENSION in extensions
    pci = make("VkPhysicalDevicePCIBusInfoPropertiesEXT", pNext=identity)
    properties = make("VkPhysicalDeviceProperties2", pNext=pci if has_pci else identity)
    lib().vkGetPhysicalDeviceProperties2(handle, properties)
    base = properties.properties
    limits, version = base.limits, base.apiVersion
    features = probe(instance, handle, version, extensions)
    tick = limits.timestampPeriod * 1e-9 if limits.timestampComputeAndGraphics else 0.0
    driver_name = ffi().string(driver.driverName).decode(errors="replace")
    driver_text = f"{driver_name} {ffi().string(driver.driverInfo).decode(errors='replace')}".strip()
    info = DeviceInfo(
        backend="vulkan",
        index=index,
        name=ffi().string(base.deviceName).decode(errors="replace"),
        type=_TYPES.get(base.deviceType, DeviceType.GPU),
        vendor=_VENDORS.get(base.vendorID, f"0x{base.vendorID:04x}"),
        driver=driver_text or f"driver {base.driverVersion}",
        total_memory=_device_memory(handle),
        max_allocation=maintenance.maxMemoryAllocationSize,
        max_binding=limits.maxStorageBufferRange,
        alignment=max(64, limits.minStorageBufferOffsetAlignment),
        transfer=(
            TransferMode.UNIFIED
            if features.host_alignment and base.deviceType not in _DISCRETE
            else TransferMode.EXPLICIT_COPY
        ),
        physical_id=pci_address(pci) if has_pci else bytes(identity.deviceUUID).hex(),
        kernels=frozenset({"top_k", *(("norm_matmul", "norm_matmul_glu") if features.subgroups else ())}),
        features=frozenset({"timings"} if tick else ()),
        extra={
            "api_version": f"{version >> 22}.{(version >> 12) & 1023}.{version & 4095}",
            "integer_dot_product": features.integer_dot,
            "cooperative_matrix": features.matrix,
            "subgroup_size": features.subgroup_size,
            "max_workgroup_invocations": limits.maxComputeWorkGroupInvocations,
            "shared_memory": limits.maxComputeSharedMemorySize,
        },
    )
    return PhysicalDevice(
        handle=handle,
        info=info,
        queue_family=family,
        copy_family=copies,
        features=features,
        max_allocations=limits.maxMemoryAllocationCount,
        cache_uuid=bytes(base.pipelineCacheUUID).hex(),
        timestamp_seconds=tick,
    )


def enabled_extensions(physical: PhysicalDevice) -> list[str]:
    """Device extensions to enable: those that the plugin uses and the device has."""
    available = _extensions(physical.handle)
    return [name for name in physical.features.extensions() if name in available]
