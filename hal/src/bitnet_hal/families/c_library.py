"""Libraries of C by cffi: structs that keep alive all that they point to, statuses that become exceptions, lists that
are counted first. For drivers whose structs begin with their type, as Vulkan's and Level Zero's do.

Core does not need cffi: a plugin brings its interface, and the library that it has opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from bitnet_hal.driver.status import ErrorDetails, StatusCodes

Handle = Any
"""A cffi value: cffi has no static types."""
_NOTHING: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


class CffiLibrary:
    """ffi, lib: cffi's. types: the enumerations that number the structs. always: by struct, fields that are the same in
    all of its kind.

    Functions are named, or given where they belong to an extension; arguments that are dicts become pointers to structs
    with these fields, as `make` has them, for as long as the call takes. `operation` is what an exception says of a
    failure.
    """

    def __init__(
        self,
        ffi: Any,
        lib: Any,
        statuses: StatusCodes,
        types: Sequence[str],
        always: Mapping[str, Mapping[str, Any]] = _NOTHING,
    ) -> None:
        self.ffi, self.lib, self.null, self._statuses, self._always = ffi, lib, ffi.NULL, statuses, always
        values = [row for one in types for row in ffi.typeof(one).relements.items()]
        self._types = {_letters(name.replace("_STRUCTURE_TYPE", "")): value for name, value in values}
        self._alive: WeakKeyDictionary[Handle, list[Any]] = WeakKeyDictionary()

    def make(self, name: str, **fields: Any) -> Handle:
        """A pointer to a new struct `name`. Values: numbers, handles, pointers, dicts for structs and pointers to them,
        and strings and lists for pointers to their items. Here and in the dicts types, what `always` has, and counts
        are filled in."""
        kept: list[Any] = []
        struct = self.ffi.new(f"{name} *", self._filled(self.ffi.typeof(name), fields, kept))
        self._alive[struct] = kept
        return struct

    def _filled(self, ctype: Any, value: Any, kept: list[Any]) -> Any:
        """What cffi makes a value of this type from; `kept` gets what must live as long."""
        kept.append(value)
        if isinstance(value, dict) and ctype.kind == "pointer":
            kept.append(self.ffi.new(ctype, self._filled(ctype.item, value, kept)))
            return kept[-1]
        if isinstance(value, dict):
            name, types = ctype.cname.removeprefix("struct "), dict(ctype.fields)
            names, given = list(types), {**self._always.get(name, {}), **value}
            made: dict[str, Any] = {names[0]: self._types[_letters(name)]} if names[0].lower() == "stype" else {}
            # the field before a pointer to several says how many they are
            made |= {names[names.index(field) - 1]: len(one) for field, one in given.items() if isinstance(one, list)}
            return made | {field: self._filled(types[field].type, one, kept) for field, one in given.items()}
        if isinstance(value, str | list):
            items = value.encode() if isinstance(value, str) else [self._filled(ctype.item, one, kept) for one in value]
            kept.append(self.ffi.new(self.ffi.getctype(ctype.item, "[]"), items))
            return kept[-1]
        return value

    def plain(self, value: Handle, ctype: Any = None) -> Any:
        """A C value as Python's own: structs as dicts without their pointers, arrays as lists, text as a string."""
        ctype = ctype or (self.ffi.typeof(value) if isinstance(value, self.ffi.CData) else None)
        kind = ctype.kind if ctype else ""
        if kind == "struct":
            fields = {name: field.type for name, field in ctype.fields if field.type.kind != "pointer"}
            return {name: self.plain(getattr(value, name), field) for name, field in fields.items()}
        if kind == "array" and ctype.item.cname == "char":
            return self.ffi.string(value).decode(errors="replace")
        return [self.plain(item, ctype.item) for item in value] if kind == "array" else value

    def call(self, function: str | Handle, operation: str, *arguments: Any, **details: Unpack[ErrorDetails]) -> None:
        """Call a function; the exception of its status, if it gives one."""
        called, kept, given = self._function(function), list[Any](), list(arguments)
        for at, fields in enumerate(given):
            if isinstance(fields, dict):
                given[at] = self._filled(self.ffi.typeof(called).args[at], fields, kept)
        status = called(*given)
        self._statuses.check(status or 0, operation, **details)

    def given(self, function: str | Handle, operation: str, *arguments: Any, **details: Unpack[ErrorDetails]) -> Any:
        """What a function puts where its last argument points, as `plain` has it."""
        ctype = self.ffi.typeof(self._function(function)).args[-1]
        place = self.ffi.new(ctype, *self._empty(ctype.item))
        self.call(function, operation, *arguments, place, **details)
        return self.plain(place[0])

    def listed(self, function: str | Handle, operation: str, *arguments: Any) -> list[Any]:
        """What a function gives that first tells how many there are, as `plain` has it."""
        kind, count = self.ffi.typeof(self._function(function)).args[-1].item, self.ffi.new("uint32_t *")
        self.call(function, operation, *arguments, count, self.null)
        items = self.ffi.new(self.ffi.getctype(kind, "[]"), self._empty(kind) * count[0] or count[0])
        if count[0]:
            self.call(function, operation, *arguments, count, items)
        return [self.plain(item, kind) for item in items[0 : count[0]]]

    def bytes_of(self, function: str | Handle, operation: str, *arguments: Any) -> bytes:
        """What a function gives that first tells how many bytes there are."""
        size = self.ffi.new("size_t *")
        self.call(function, operation, *arguments, size, self.null)
        data, kind = self.ffi.new("char[]", size[0]), self.ffi.typeof(self._function(function)).args[-1]
        self.call(function, operation, *arguments, size, self.ffi.cast(kind, data))
        return bytes(self.ffi.buffer(data, size[0]))

    def address(self, host: memoryview) -> int:
        """Where these bytes are."""
        return int(self.ffi.cast("uintptr_t", self.ffi.from_buffer(host)))

    def _function(self, function: str | Handle) -> Handle:
        return getattr(self.lib, function) if isinstance(function, str) else function

    def _empty(self, ctype: Any) -> list[Any]:
        """What a new item of this type begins as."""
        return [self._filled(ctype, {}, [])] if ctype.kind == "struct" else []


class HandleRegistry:
    """What functions of a library have made for a device. create, destroy: their names, by the kind of what they make;
    around: what all of them want before their own arguments, and behind them."""

    def __init__(
        self,
        library: CffiLibrary,
        create: Callable[[str], str],
        destroy: Callable[[str], str],
        around: tuple[Sequence[Handle], Sequence[Handle]] = ((), ()),
    ) -> None:
        self._library, self._create, self._destroy, self._around = library, create, destroy, around
        self._living: dict[tuple[str, Handle], None] = {}

    def create(self, kind: str, *arguments: Any, operation: str = "") -> Handle:
        """One more of them. operation: for an exception, the function's name where it is left out."""
        name, (before, behind) = self._create(kind), self._around
        return self.own(kind, self._library.given(name, operation or name, *before, *arguments, *behind))

    def own(self, kind: str, handle: Handle) -> Handle:
        """Keep it."""
        self._living[kind, handle] = None
        return handle

    def destroy(self, kind: str, handle: Handle) -> None:
        """One of those that are kept, which nothing uses any more."""
        del self._living[kind, handle]
        name, (before, behind) = self._destroy(kind), self._around
        self._library.call(name, name, *before, handle, *behind)

    def close(self) -> None:
        """Destroy all that is left, the last first."""
        for kind, handle in reversed(list(self._living)):
            self.destroy(kind, handle)


def _letters(name: str) -> str:
    """Of a struct or the name of its type: their capitals and underscores follow no rule."""
    return name.removesuffix("_t").replace("_", "").upper()
