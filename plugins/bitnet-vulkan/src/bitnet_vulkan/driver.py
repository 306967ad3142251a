"""The C API through PyPI `vulkan`'s cffi layer, and its results as exceptions. The package's own struct factory forgets
the pointers of a struct that is copied into another one (its `pName`, say), which then dangle; core's keeps them."""

from __future__ import annotations

import os
from functools import cache

from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.plugin import CffiLibrary, Handle, HandleRegistry, StatusCodes, failure, table

BACKEND = "vulkan"
TIMEOUT, TOO_MANY_OBJECTS, DEVICE_LOST = 2, -10, -4
STATUSES = StatusCodes(__file__, BACKEND, lambda status, name: f"{name or 'VkResult'} ({status})")
check = STATUSES.check


@cache
def vk() -> CffiLibrary:
    """PyPI `vulkan`, imported on first use because the import loads the system's Vulkan loader."""
    try:
        import vulkan  # type: ignore[import-untyped]  # the package has no types
    except (ImportError, OSError) as exc:
        said = f"the Vulkan loader cannot be used: {exc}".splitlines()[0]
        hint = "Install the loader and a driver (Debian: apt install libvulkan1 mesa-vulkan-drivers)"
        raise failure(BackendUnavailableError, "load", backend=BACKEND, said=said, hint=hint) from exc
    return CffiLibrary(vulkan.ffi, vulkan.lib, STATUSES, ["VkStructureType"], table(__file__, "structs.toml"))


@cache
def instance() -> Handle:
    """The VkInstance of this process, with the layers of VK_INSTANCE_LAYERS."""
    layers = [name for name in os.environ.get("VK_INSTANCE_LAYERS", "").split(os.pathsep) if name]
    version = min(vk().given("vkEnumerateInstanceVersion", "open"), 0x403000)  # 1.3
    wanted = {"pApplicationInfo": {"apiVersion": version}, "ppEnabledLayerNames": layers}
    return vk().given("vkCreateInstance", "open", wanted, vk().null)


@cache
def function(name: str) -> Handle:
    """A function of an extension; None where no driver has it."""
    pointer = vk().lib.vkGetInstanceProcAddr(instance(), name.encode())
    return None if pointer == vk().null else vk().ffi.cast(f"PFN_{name}", pointer)


class Logical(HandleRegistry):
    """A VkDevice. What was created from it goes with it, the last first."""

    def __init__(self, handle: Handle) -> None:
        freed, around = {"DeviceMemory": "vkFreeMemory"}, ([handle], [vk().null])
        super().__init__(vk(), "vkCreate{}".format, lambda kind: freed.get(kind, f"vkDestroy{kind}"), around)
        self.handle = handle

    def close(self) -> None:
        """Destroy the device, once nothing runs on it."""
        vk().lib.vkDeviceWaitIdle(self.handle)
        super().close()
        vk().lib.vkDestroyDevice(self.handle, vk().null)
