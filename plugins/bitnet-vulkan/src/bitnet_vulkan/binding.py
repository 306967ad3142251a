"""The C API through PyPI `vulkan`'s cffi layer, with structs that keep alive all that they point to.

The package's own struct factory forgets the pointers of a struct that is copied into another one (its `pName`, say),
which then dangle. `make` holds on to them, and calls return the VkResult, so that one table turns it into an error.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from bitnet_core.errors import BackendUnavailableError

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


def constant(name: str) -> int:
    """A VK_... value."""
    return int(getattr(module(), name))


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
        struct.sType = constant(_structure_types()[name.upper()])
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
        if not value:
            return cffi.NULL
        items = [_convert(item, ctype.item, kept) for item in value]
        kept.append(cffi.new(cffi.getctype(ctype.item, "[]"), items))
        return kept[-1]
    if ctype.kind == "struct" and isinstance(value, cffi.CData) and cffi.typeof(value).kind == "pointer":
        return value[0]
    if isinstance(value, (bytes, bytearray, memoryview)):
        kept.append(cffi.from_buffer(value))
        return cffi.cast(ctype, kept[-1])
    return value
