"""The C API through PyPI `vulkan`'s cffi layer, with structs that keep alive all that they point to.

The package's own struct factory forgets the pointers of a struct that is copied into another one (its `pName`, say),
which then dangle. `make` holds on to them, and calls return the VkResult, so that one table turns it into an error.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal.failures import Details, failure

from bitnet_vulkan.errors import BACKEND, check

Handle = Any
"""A cffi value: cffi has no static types."""
WHOLE_SIZE = 0xFFFFFFFFFFFFFFFF
_SAME: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("structs.toml").read_text("utf-8"))
_alive: WeakKeyDictionary[Handle, list[Any]] = WeakKeyDictionary()


@cache
def module() -> Any:
    """PyPI `vulkan`, imported on first use because the import loads the system's Vulkan loader."""
    try:
        import vulkan  # type: ignore[import-untyped]  # the package has no types
    except (ImportError, OSError) as exc:
        said = f"the Vulkan loader cannot be used: {exc}".splitlines()[0]
        hint = "Install the loader and a driver (Debian: apt install libvulkan1 mesa-vulkan-drivers)"
        raise failure(BackendUnavailableError, "load", backend=BACKEND, said=said, hint=hint) from exc
    return vulkan


def ffi() -> Any:
    """cffi's interface object."""
    return module().ffi


def lib() -> Any:
    """The loader's C functions; they return VkResult."""
    return module().lib


def function(name: str, parent: Handle) -> Any:
    """A function of an extension, of an instance or a device; None where the driver has none."""
    of_device = ffi().typeof(parent) is ffi().typeof("VkDevice")
    pointer = (lib().vkGetDeviceProcAddr if of_device else lib().vkGetInstanceProcAddr)(parent, name.encode())
    return None if pointer == ffi().NULL else ffi().cast(f"PFN_{name}", pointer)


@cache
def _structure_types() -> dict[str, int]:
    """VK_STRUCTURE_TYPE_... by the struct's name in capitals: their underscores follow no rule."""
    values = ffi().typeof("VkStructureType").relements.items()
    return {name.replace("_STRUCTURE_TYPE", "").replace("_", ""): value for name, value in values}


def make(name: str, **fields: Any) -> Handle:
    """A pointer to a new struct `name`. Values: numbers, handles, pointers, dicts for structs by value, and strings and
    lists for pointers to their items. Here and in the dicts sType, what structs.toml has, and counts are filled in."""
    kept: list[Any] = []
    struct = ffi().new(f"{name} *", _filled(ffi().typeof(name), fields, kept))
    _alive[struct] = kept
    return struct


def _filled(ctype: Any, value: Any, kept: list[Any]) -> Any:
    """What cffi makes a value of this type from; `kept` gets what must live as long."""
    kept.append(value)
    if isinstance(value, dict):
        name, types = ctype.cname.removeprefix("struct "), dict(ctype.fields)
        names, given = list(types), _SAME.get(name, {}) | value
        made = {"sType": _structure_types()[name.upper()]} if "sType" in types else {}
        # the field before a pointer to several says how many they are, in all of Vulkan
        made |= {names[names.index(field) - 1]: len(one) for field, one in given.items() if isinstance(one, list)}
        return made | {field: _filled(types[field].type, one, kept) for field, one in given.items()}
    if isinstance(value, str | list):
        items = value.encode() if isinstance(value, str) else [_filled(ctype.item, one, kept) for one in value]
        kept.append(ffi().new(ffi().getctype(ctype.item, "[]"), items))
        return kept[-1]
    return value


def plain(value: Handle, ctype: Any = None) -> Any:
    """A C value as Python's own: structs as dicts without their pointers, arrays as lists, text as a string."""
    ctype = ctype or ffi().typeof(value)
    if ctype.kind == "struct":
        fields = {name: field.type for name, field in ctype.fields if field.type.kind != "pointer"}
        return {name: plain(getattr(value, name), kind) for name, kind in fields.items()}
    if ctype.kind == "array" and ctype.item.cname == "char":
        return ffi().string(value).decode(errors="replace")
    return [plain(item, ctype.item) for item in value] if ctype.kind == "array" else value


def listed(kind: str, call: Any, *owner: Handle) -> list[Any]:
    """What a call gives that first tells how many there are, as `plain` has it."""
    count, ctype = ffi().new("uint32_t *"), ffi().typeof(kind)
    check(call(*owner, count, ffi().NULL) or 0, "list devices")
    empty = [_filled(ctype, {}, [])] if ctype.kind == "struct" else [ffi().NULL]
    items = ffi().new(f"{kind}[]", empty * count[0])
    check(call(*owner, count, items) or 0, "list devices")
    return [plain(item, ctype) for item in items[0 : count[0]]]


def call(name: str, operation: str, *arguments: Any, **details: Unpack[Details]) -> None:
    """Call a function; the exception of its status."""
    check(getattr(lib(), name)(*arguments), operation, **details)


def create(kind: str, *parent: Handle, operation: str, **fields: Any) -> Handle:
    """What vkCreate`kind` makes of a Vk`kind`CreateInfo with these fields."""
    info, handle = make(f"Vk{kind}CreateInfo", **fields), ffi().new(f"Vk{kind} *")
    call(f"vkCreate{kind}", operation, *parent, info, ffi().NULL, handle)
    return handle[0]


@contextmanager
def instance() -> Iterator[Handle]:
    """A VkInstance with the layers of VK_INSTANCE_LAYERS; what was made from it ends before it."""
    layers = [name for name in os.environ.get("VK_INSTANCE_LAYERS", "").split(os.pathsep) if name]
    version = ffi().new("uint32_t *")
    lib().vkEnumerateInstanceVersion(version)
    about = make("VkApplicationInfo", apiVersion=min(version[0], 0x403000))  # 1.3
    made = create("Instance", operation="open", pApplicationInfo=about, ppEnabledLayerNames=layers)
    try:
        yield made
    finally:
        lib().vkDestroyInstance(made, ffi().NULL)


class Logical:
    """A VkDevice. What was created from it goes with it, the last first."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._living: dict[tuple[str, Handle], None] = {}

    def create(self, kind: str, operation: str, **fields: Any) -> Handle:
        """See the function `create`."""
        return self.own(kind, create(kind, self.handle, operation=operation, **fields))

    def own(self, kind: str, handle: Handle) -> Handle:
        """What another call has created."""
        self._living[kind, handle] = None
        return handle

    def destroy(self, kind: str, handle: Handle) -> None:
        """The inverse of `create`; the device no longer uses it."""
        del self._living[kind, handle]
        free = lib().vkFreeMemory if kind == "DeviceMemory" else getattr(lib(), f"vkDestroy{kind}")
        free(self.handle, handle, ffi().NULL)

    def close(self) -> None:
        """Destroy the device, once nothing runs on it."""
        lib().vkDeviceWaitIdle(self.handle)
        for kind, handle in reversed(list(self._living)):
            self.destroy(kind, handle)
        lib().vkDestroyDevice(self.handle, ffi().NULL)
