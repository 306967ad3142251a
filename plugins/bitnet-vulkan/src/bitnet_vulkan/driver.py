"""The C API through PyPI `vulkan`'s cffi layer.

The package's own struct factory forgets the pointers of a struct that is copied into another one (its `pName`, say),
which then dangle; core's holds on to them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal.c_library import CLibrary, Created, Handle
from bitnet_core.hal.failures import failure

from bitnet_vulkan.errors import BACKEND, STATUSES

WHOLE_SIZE = 0xFFFFFFFFFFFFFFFF


@cache
def vk() -> CLibrary:
    """PyPI `vulkan`, imported on first use because the import loads the system's Vulkan loader."""
    try:
        import vulkan  # type: ignore[import-untyped]  # the package has no types
    except (ImportError, OSError) as exc:
        said = f"the Vulkan loader cannot be used: {exc}".splitlines()[0]
        hint = "Install the loader and a driver (Debian: apt install libvulkan1 mesa-vulkan-drivers)"
        raise failure(BackendUnavailableError, "load", backend=BACKEND, said=said, hint=hint) from exc
    always = tomllib.loads(Path(__file__).with_name("structs.toml").read_text("utf-8"))
    return CLibrary(vulkan.ffi, vulkan.lib, STATUSES, ["VkStructureType"], always)


def function(name: str, parent: Handle) -> Any:
    """A function of an extension, of an instance or a device; None where the driver has none."""
    kind = vk().ffi.typeof(parent).item.cname.removeprefix("struct Vk").removesuffix("_T")
    pointer = getattr(vk().lib, f"vkGet{kind}ProcAddr")(parent, name.encode())
    return None if pointer == vk().null else vk().ffi.cast(f"PFN_{name}", pointer)


def create(kind: str, *parent: Handle, operation: str, **fields: Any) -> Handle:
    """What vkCreate`kind` makes of a Vk`kind`CreateInfo with these fields."""
    info = vk().make(f"Vk{kind}CreateInfo", **fields)
    return vk().given(f"vkCreate{kind}", operation, *parent, info, vk().null)


@contextmanager
def instance() -> Iterator[Handle]:
    """A VkInstance with the layers of VK_INSTANCE_LAYERS; what was made from it ends before it."""
    layers = [name for name in os.environ.get("VK_INSTANCE_LAYERS", "").split(os.pathsep) if name]
    version = min(vk().given("vkEnumerateInstanceVersion", "open"), 0x403000)  # 1.3
    about = vk().make("VkApplicationInfo", apiVersion=version)
    made = create("Instance", operation="open", pApplicationInfo=about, ppEnabledLayerNames=layers)
    try:
        yield made
    finally:
        vk().lib.vkDestroyInstance(made, vk().null)


class Logical(Created):
    """A VkDevice. What was created from it goes with it, the last first."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(self._destroyed)
        self.handle = handle

    def create(self, kind: str, operation: str, **fields: Any) -> Handle:
        """See the function `create`."""
        return self.own(kind, create(kind, self.handle, operation=operation, **fields))

    def _destroyed(self, kind: str, handle: Handle) -> None:
        free = vk().lib.vkFreeMemory if kind == "DeviceMemory" else getattr(vk().lib, f"vkDestroy{kind}")
        free(self.handle, handle, vk().null)

    def close(self) -> None:
        """Destroy the device, once nothing runs on it."""
        vk().lib.vkDeviceWaitIdle(self.handle)
        super().close()
        vk().lib.vkDestroyDevice(self.handle, vk().null)
