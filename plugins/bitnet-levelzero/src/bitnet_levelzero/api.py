"""The binding: what api.toml declares of Level Zero, for ctypes, and how it is called: results become exceptions, and
nothing is loaded before the first call. There is no well-kept binding for Python, and so few functions need none.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tomllib
from ctypes import POINTER, byref, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Unpack

from bitnet_core.hal.failures import Details

from bitnet_levelzero.errors import check

LIBRARY = "ze_loader.dll" if sys.platform == "win32" else "libze_loader.so.1"
D = TypeVar("D", bound="Described")


DECLARED: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("api.toml").read_text("utf-8"))
FUNCTIONS: dict[str, list[str]] = DECLARED["functions"]
SCALARS = {"u32": c_uint32, "f32": ctypes.c_float}
_TYPES = SCALARS | {
    "char": ctypes.c_char,
    "char*": ctypes.c_char_p,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "size": ctypes.c_size_t,
    "u8": ctypes.c_uint8,
    "u64": ctypes.c_uint64,
    "void*": c_void_p,
}


class Described(ctypes.Structure):
    """Begins with what it is, and a link to an extension of it."""

    STYPE = 0
    _fields_: ClassVar[Any] = (("stype", c_uint32), ("pNext", c_void_p))

    def __init__(self, **values: Any) -> None:
        super().__init__(stype=self.STYPE, **values)


@cache
def structure(name: str) -> Any:
    """The class of a structure in api.toml."""
    fields = dict(DECLARED["structures"][name])
    stype = fields.pop("stype", None)
    base = ctypes.Structure if stype is None else Described
    return type(name, (base,), {"STYPE": stype, "_fields_": [(key, _type(kind)) for key, kind in fields.items()]})


def _type(declared: str) -> Any:
    if declared in _TYPES:
        return _TYPES[declared]
    if declared.endswith("*"):
        return POINTER(_type(declared[:-1]))
    name, _, count = declared.rstrip("]").partition("[")
    return _type(name) * int(count) if count else structure(name)


def __getattr__(name: str) -> Any:
    """The structures, as attributes of this module."""
    if name in DECLARED["structures"]:
        return structure(name)
    raise AttributeError(f"bitnet_levelzero.api has no {name}")


@cache
def load() -> ctypes.CDLL:
    """The loader; OSError where it is not installed."""
    os.environ.setdefault("ZES_ENABLE_SYSMAN", "1")  # free memory; drivers read it in zeInit
    library = ctypes.CDLL(LIBRARY)
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:  # an old loader lacks some, which are asked for by `has`
            function.argtypes, function.restype = [_type(kind) for kind in arguments], c_uint32
    return library


def has(name: str) -> bool:
    """Whether the loader knows a function."""
    return hasattr(load(), name)


def call(name: str, *arguments: Any, doing: str = "", **details: Unpack[Details]) -> None:
    """Call a function; the exception of its result if it fails."""
    check(getattr(load(), name)(*arguments), doing or name, **details)


def created(name: str, *arguments: Any) -> c_void_p:
    """The handle that a function gives as its last argument."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


def asked(name: str, handle: c_void_p, kind: type[D]) -> D:
    """The structure that a function fills in."""
    answer = kind()
    call(name, handle, byref(answer))
    return answer


def handles(name: str, *parent: c_void_p) -> list[c_void_p]:
    """All handles that a function counts first and then gives."""
    return [c_void_p(handle) for handle in _counted(name, parent, c_void_p)]


def structures(name: str, parent: c_void_p, kind: type[D]) -> list[D]:
    """All structures that a function counts first and then fills in."""
    return list(_counted(name, (parent,), kind))


def _counted(name: str, parent: tuple[c_void_p, ...], kind: Any) -> Any:
    count = c_uint32()
    call(name, *parent, byref(count), None)
    answers = (kind * count.value)(*(kind() for _ in range(count.value)))
    if count.value:
        call(name, *parent, byref(count), answers)
    return answers
