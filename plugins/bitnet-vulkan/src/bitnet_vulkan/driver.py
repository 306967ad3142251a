"""The C API through PyPI `vulkan`'s cffi layer, with structs that keep alive all that they point to.

The package's own struct factory forgets the pointers of a struct that is copied into another one (its `pName`, say),
which then dangle. `make` holds on to them, and calls return the VkResult, so that one table turns it into an error.
"""

from __future__ import annotations

import os
from functools import cache
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from bitnet_core.errors import BackendUnavailableError

from bitnet_vulkan.errors import Stage, check

Handle = Any
"""A cffi value: cffi has no static types."""

WHOLE_SIZE = 0xFFFFFFFFFFFFFFFF

_alive: WeakKeyDictionary[Handle, list[Any]] = WeakKeyDictionary()


@cache
def module() -> Any:
    """PyPI `vulkan`, imported on first use because the import loads the system's Vulkan loader."""
    try:
        import vulkan  # type: ignore[import-untyped]  # the package has no types
    except (ImportError, OSError) as exc:
        raise BackendUnavailableError(
            f"the Vulkan loader cannot be used: {exc}".splitlines()[0],
            backend="vulkan",
            operation="load",
            hint="Install the loader and a driver (Debian: apt install libvulkan1 mesa-vulkan-drivers)",
        ) from exc
    return vulkan


def ffi() -> Any:
    """cffi's interface object."""
    return module().ffi


def lib() -> Any:
    """The loader's C functions; they return VkResult."""
    return module().lib


def function(name: str, instance: Handle = None, device: Handle = None) -> Any:
    """A function of an extension; None where the driver has none."""
    find = lib().vkGetDeviceProcAddr if device is not None else lib().vkGetInstanceProcAddr
    pointer = find(instance if device is None else device, name.encode())
    return None if pointer == ffi().NULL else ffi().cast(f"PFN_{name}", pointer)


@cache
def _structure_types() -> dict[str, str]:
    """VK_STRUCTURE_TYPE_... by the struct's name in capitals: their underscores follow no rule."""
    prefix = "VK_STRUCTURE_TYPE_"
    names = [name for name in dir(module()) if name.startswith(prefix)]
    return {"VK" + name.removeprefix(prefix).replace("_", ""): name for name in names}


def make(name: str, **fields: Any) -> Handle:
    """A pointer to a new struct `name`; sType is filled in.

    Values may be numbers, handles, strings, bytes, other structs from `make` (by pointer or by value, as the field
    wants), and lists of those.
    """
    cffi = ffi()
    struct = cffi.new(f"{name} *")
    kept: list[Any] = []
    types = dict(cffi.typeof(name).fields)
    if "sType" in types:
        struct.sType = getattr(module(), _structure_types()[name.upper()])
    for field, value in fields.items():
        setattr(struct, field, _convert(value, types[field].type, kept))
    _alive[struct] = kept
    return struct


def _convert(value: Any, ctype: Any, kept: list[Any]) -> Any:
    cffi = ffi()
    kept.append(value)
    if isinstance(value, str):
        kept.append(cffi.new("char[]", value.encode()))
        return kept[-1]
    if isinstance(value, list):
        items = [_convert(item, ctype.item, kept) for item in value]
        kept.append(cffi.new(cffi.getctype(ctype.item, "[]"), items))
        return kept[-1] if items else cffi.NULL
    if isinstance(value, bytes):
        kept.append(cffi.from_buffer(value))
        return cffi.cast(ctype, kept[-1])
    if ctype.kind == "struct" and cffi.typeof(value).kind == "pointer":
        return value[0]
    return value


def create(name: str, parent: Handle, stage: Stage, device: str = "", **fields: Any) -> Handle:
    """What vkCreate`name` makes of a Vk`name`CreateInfo with these fields."""
    handle = ffi().new(f"Vk{name} *")
    made = getattr(lib(), f"vkCreate{name}")(parent, make(f"Vk{name}CreateInfo", **fields), ffi().NULL, handle)
    check(made, stage, device)
    return handle[0]


def destroy(name: str, parent: Handle, handle: Handle) -> None:
    """The inverse of `create`."""
    getattr(lib(), f"vkDestroy{name}")(parent, handle, ffi().NULL)


class Instance:
    """A VkInstance with the layers of VK_INSTANCE_LAYERS; closing it ends everything made from it."""

    def __init__(self) -> None:
        layers = [name for name in os.environ.get("VK_INSTANCE_LAYERS", "").split(os.pathsep) if name]
        version, handle = ffi().new("uint32_t *"), ffi().new("VkInstance *")
        lib().vkEnumerateInstanceVersion(version)
        about = make("VkApplicationInfo", pApplicationName="bitnet", apiVersion=min(version[0], 0x403000))
        wanted = {"pApplicationInfo": about, "enabledLayerCount": len(layers), "ppEnabledLayerNames": layers}
        check(lib().vkCreateInstance(make("VkInstanceCreateInfo", **wanted), ffi().NULL, handle), Stage.INSTANCE)
        self.handle = handle[0]

    def close(self) -> None:
        """Destroy the instance; may be called twice."""
        if self.handle is not None:
            lib().vkDestroyInstance(self.handle, ffi().NULL)
            self.handle = None

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
