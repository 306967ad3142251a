"""The Vulkan C API through the cffi layer of PyPI `vulkan`, and its results as exceptions.

bitnet_hal's CffiLibrary creates the structs: the package's own factory drops the memory behind pointers (such as
`pName`) of a struct that is copied into another one.
"""

from __future__ import annotations

import os
from functools import cache

from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.plugin import CffiLibrary, Handle, HandleRegistry, StatusCodes, failure, table

BACKEND = "vulkan"
TIMEOUT = 2  # VkResult
DEVICE_LOST = -4
TOO_MANY_OBJECTS = -10
STATUSES = StatusCodes(__file__, BACKEND, lambda status, name: f"{name or 'VkResult'} ({status})")
check = STATUSES.check


@cache
def vk() -> CffiLibrary:
    """Return the library of PyPI `vulkan`, imported on first use since that loads the system's Vulkan loader."""
    try:
        import vulkan  # type: ignore[import-untyped]  # the package has no types
    except (ImportError, OSError) as exc:
        said = f"the Vulkan loader cannot be used: {exc}".splitlines()[0]
        hint = "Install the loader and a driver (Debian: apt install libvulkan1 mesa-vulkan-drivers)"
        raise failure(BackendUnavailableError, "load", backend=BACKEND, said=said, hint=hint) from exc
    return CffiLibrary(vulkan.ffi, vulkan.lib, STATUSES, ["VkStructureType"], table(__file__, "structs.toml"))


@cache
def instance() -> Handle:
    """Create the VkInstance of this process, with the layers of VK_INSTANCE_LAYERS."""
    layers = [name for name in os.environ.get("VK_INSTANCE_LAYERS", "").split(os.pathsep) if name]
    version = min(vk().given("vkEnumerateInstanceVersion", "open"), 0x403000)  # 1.3
    create_info = {"pApplicationInfo": {"apiVersion": version}, "ppEnabledLayerNames": layers}
    return vk().given("vkCreateInstance", "open", create_info, vk().null)


@cache
def function(name: str) -> Handle:
    """Return a function of an extension, None if no driver has it."""
    pointer = vk().lib.vkGetInstanceProcAddr(instance(), name.encode())
    return None if pointer == vk().null else vk().ffi.cast(f"PFN_{name}", pointer)


class Logical(HandleRegistry):
    """A VkDevice and the handles created from it, which `close` destroys in reverse order."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(vk(), "vkCreate{}".format, _destructor, around=([handle], [vk().null]))
        self.handle = handle

    def close(self) -> None:
        """Wait until the device is idle, then destroy it."""
        vk().lib.vkDeviceWaitIdle(self.handle)
        super().close()
        vk().lib.vkDestroyDevice(self.handle, vk().null)


def _destructor(kind: str) -> str:
    return "vkFreeMemory" if kind == "DeviceMemory" else f"vkDestroy{kind}"
