"""Calls of the loader, whose results become exceptions. Nothing is loaded before the first one."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_uint32, c_void_p
from functools import cache
from typing import Any, TypeVar, Unpack

from bitnet_core.hal.failures import Details

from bitnet_levelzero.api import FUNCTIONS, ContextDesc, Described
from bitnet_levelzero.errors import check

LIBRARY = "ze_loader.dll" if sys.platform == "win32" else "libze_loader.so.1"
D = TypeVar("D", bound=Described)


@cache
def load() -> ctypes.CDLL:
    """The loader; OSError where it is not installed."""
    os.environ.setdefault("ZES_ENABLE_SYSMAN", "1")  # free memory; drivers read it in zeInit
    library = ctypes.CDLL(LIBRARY)
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:  # an old loader lacks some, which are asked for by `has`
            function.argtypes, function.restype = arguments, c_uint32
    return library


def has(name: str) -> bool:
    """Whether the loader knows a function."""
    return hasattr(load(), name)


def call(name: str, *arguments: Any) -> None:
    """Call a function; the exception of its result if it fails."""
    check(getattr(load(), name)(*arguments), name)


def asked(name: str, handle: c_void_p, kind: type[D]) -> D:
    """The structure that a function fills in."""
    answer = kind()
    call(name, handle, byref(answer))
    return answer


def handles(name: str, *parent: c_void_p) -> list[c_void_p]:
    """All handles that a function counts first and then gives."""
    count = c_uint32()
    call(name, *parent, byref(count), None)
    found = (c_void_p * count.value)()
    if count.value:
        call(name, *parent, byref(count), found)
    return [c_void_p(handle) for handle in found]


def structures(name: str, parent: c_void_p, kind: type[D]) -> list[D]:
    """All structures that a function counts first and then fills in."""
    count = c_uint32()
    call(name, parent, byref(count), None)
    answers = (kind * count.value)()
    for answer in answers:
        answer.stype = kind.STYPE
    call(name, parent, byref(count), answers)
    return list(answers)


class Context:
    """A context with its one device; errors of what is called through it name the device.

    ordinal: the group of the device's queues that compute.
    """

    def __init__(self, driver: c_void_p, device: c_void_p, ordinal: int, name: str) -> None:
        self.device, self.ordinal, self._name = device, ordinal, name
        self.handle = self.created("zeContextCreate", driver, byref(ContextDesc()))

    def check(self, result: int, operation: str, **details: Unpack[Details]) -> None:
        """See errors.check."""
        check(result, operation, self._name, **details)

    def call(self, name: str, *arguments: Any, doing: str = "", **details: Unpack[Details]) -> None:
        """Call a function; the exception of its result if it fails."""
        self.check(getattr(load(), name)(*arguments), doing or name, **details)

    def created(self, name: str, *arguments: Any) -> c_void_p:
        """The handle that a function gives as its last argument."""
        handle = c_void_p()
        self.call(name, *arguments, byref(handle))
        return handle

    def destroy(self) -> None:
        """Everything in it is gone."""
        self.call("zeContextDestroy", self.handle)
