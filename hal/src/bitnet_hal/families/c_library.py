"""C libraries through cffi, for drivers whose structs begin with their type, as Vulkan's and Level Zero's do.

Structs keep alive everything they point to, status codes become exceptions, count-then-fill functions return lists.
bitnet-hal does not depend on cffi: a plugin passes its FFI object and the library that it opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from bitnet_hal.driver.status import ErrorDetails, StatusCodes

Handle = Any
"""A cffi value; cffi has no static types."""
_NOTHING: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


class CffiLibrary:
    """A C library. ffi, lib: cffi's objects. types: names of the enumerations that number the struct types. always:
    default fields by struct.

    A function is passed by name, or as a cffi pointer if it belongs to an extension. Arguments that are dicts become
    pointers to structs with these fields, as in `make`, for the duration of the call. operation: names the call in
    exceptions.
    """

    def __init__(
        self,
        ffi: Any,
        lib: Any,
        statuses: StatusCodes,
        types: Sequence[str],
        always: Mapping[str, Mapping[str, Any]] = _NOTHING,
    ) -> None:
        self.ffi = ffi
        self.lib = lib
        self.null = ffi.NULL
        self._statuses = statuses
        self._always = always
        values = [row for one in types for row in ffi.typeof(one).relements.items()]
        self._types = {_letters(name.replace("_STRUCTURE_TYPE", "")): value for name, value in values}
        self._alive: WeakKeyDictionary[Handle, list[Any]] = WeakKeyDictionary()

    def make(self, name: str, **fields: Any) -> Handle:
        """Return a pointer to a new struct `name`.

        Values are numbers, handles, pointers, dicts for structs and pointers to them, strings and lists for pointers to
        items. Struct types, default fields (`always`) and counts of lists are filled in at every level.
        """
        kept: list[Any] = []
        struct = self.ffi.new(f"{name} *", self._filled(self.ffi.typeof(name), fields, kept))
        self._alive[struct] = kept
        return struct

    def _filled(self, ctype: Any, value: Any, kept: list[Any]) -> Any:
        """Return an initializer for `ctype`. Objects that must live as long as the value are appended to `kept`."""
        kept.append(value)
        if isinstance(value, dict) and ctype.kind == "pointer":
            kept.append(self.ffi.new(ctype, self._filled(ctype.item, value, kept)))
            return kept[-1]
        if isinstance(value, dict):
            name = ctype.cname.removeprefix("struct ")
            types = dict(ctype.fields)
            names = list(types)
            given = {**self._always.get(name, {}), **value}
            made: dict[str, Any] = {names[0]: self._types[_letters(name)]} if names[0].lower() == "stype" else {}
            # the field before a pointer to several items is their count
            made |= {names[names.index(field) - 1]: len(one) for field, one in given.items() if isinstance(one, list)}
            return made | {field: self._filled(types[field].type, one, kept) for field, one in given.items()}
        if isinstance(value, str | list):
            items = value.encode() if isinstance(value, str) else [self._filled(ctype.item, one, kept) for one in value]
            kept.append(self.ffi.new(self.ffi.getctype(ctype.item, "[]"), items))
            return kept[-1]
        return value

    def plain(self, value: Handle, ctype: Any = None) -> Any:
        """Convert a C value to Python: structs to dicts without pointers, arrays to lists, char arrays to str."""
        ctype = ctype or (self.ffi.typeof(value) if isinstance(value, self.ffi.CData) else None)
        kind = ctype.kind if ctype else ""
        if kind == "struct":
            fields = {name: field.type for name, field in ctype.fields if field.type.kind != "pointer"}
            return {name: self.plain(getattr(value, name), field) for name, field in fields.items()}
        if kind == "array" and ctype.item.cname == "char":
            return self.ffi.string(value).decode(errors="replace")
        return [self.plain(item, ctype.item) for item in value] if kind == "array" else value

    def call(self, function: str | Handle, operation: str, *arguments: Any, **details: Unpack[ErrorDetails]) -> None:
        """Call a function. Raises the exception of its status if that is not 0."""
        called = self._function(function)
        kept = list[Any]()
        given = list(arguments)
        for at, fields in enumerate(given):
            if isinstance(fields, dict):
                given[at] = self._filled(self.ffi.typeof(called).args[at], fields, kept)
        status = called(*given)
        self._statuses.check(status or 0, operation, **details)

    def given(self, function: str | Handle, operation: str, *arguments: Any, **details: Unpack[ErrorDetails]) -> Any:
        """Call a function that writes to its last argument, and return that value as `plain`."""
        ctype = self.ffi.typeof(self._function(function)).args[-1]
        place = self.ffi.new(ctype, *self._empty(ctype.item))
        self.call(function, operation, *arguments, place, **details)
        return self.plain(place[0])

    def listed(self, function: str | Handle, operation: str, *arguments: Any) -> list[Any]:
        """Call a count-then-fill function and return the items as `plain`."""
        kind = self.ffi.typeof(self._function(function)).args[-1].item
        count = self.ffi.new("uint32_t *")
        self.call(function, operation, *arguments, count, self.null)
        items = self.ffi.new(self.ffi.getctype(kind, "[]"), self._empty(kind) * count[0] or count[0])
        if count[0]:
            self.call(function, operation, *arguments, count, items)
        return [self.plain(item, kind) for item in items[0 : count[0]]]

    def bytes_of(self, function: str | Handle, operation: str, *arguments: Any) -> bytes:
        """Call a count-then-fill function of bytes and return them."""
        size = self.ffi.new("size_t *")
        self.call(function, operation, *arguments, size, self.null)
        data = self.ffi.new("char[]", size[0])
        kind = self.ffi.typeof(self._function(function)).args[-1]
        self.call(function, operation, *arguments, size, self.ffi.cast(kind, data))
        return bytes(self.ffi.buffer(data, size[0]))

    def address(self, host: memoryview) -> int:
        """Return the address of these bytes."""
        return int(self.ffi.cast("uintptr_t", self.ffi.from_buffer(host)))

    def _function(self, function: str | Handle) -> Handle:
        return getattr(self.lib, function) if isinstance(function, str) else function

    def _empty(self, ctype: Any) -> list[Any]:
        """Return the initializer of an empty item as a list, [] if the type needs none."""
        return [self._filled(ctype, {}, [])] if ctype.kind == "struct" else []


class HandleRegistry:
    """Handles created for a device, destroyed in reverse order.

    create, destroy: return a function's name for a kind of handle. around: arguments that all these functions take
    before and after their own.
    """

    def __init__(
        self,
        library: CffiLibrary,
        create: Callable[[str], str],
        destroy: Callable[[str], str],
        around: tuple[Sequence[Handle], Sequence[Handle]] = ((), ()),
    ) -> None:
        self._library = library
        self._create = create
        self._destroy = destroy
        self._around = around
        self._living: dict[tuple[str, Handle], None] = {}

    def create(self, kind: str, *arguments: Any, operation: str = "") -> Handle:
        """Create a handle. operation: names the call in exceptions; by default the function's name."""
        name = self._create(kind)
        before, behind = self._around
        return self.own(kind, self._library.given(name, operation or name, *before, *arguments, *behind))

    def own(self, kind: str, handle: Handle) -> Handle:
        """Register a handle that another function created."""
        self._living[kind, handle] = None
        return handle

    def destroy(self, kind: str, handle: Handle) -> None:
        """Destroy a handle that is no longer in use."""
        del self._living[kind, handle]
        name = self._destroy(kind)
        before, behind = self._around
        self._library.call(name, name, *before, handle, *behind)

    def close(self) -> None:
        """Destroy all remaining handles, newest first."""
        for kind, handle in reversed(list(self._living)):
            self.destroy(kind, handle)


def _letters(name: str) -> str:
    """Normalize the name of a struct or of its type, whose case and underscores are inconsistent."""
    return name.removesuffix("_t").replace("_", "").upper()
