"""The binding to Level Zero: the declarations of tools/ze_api.h, through cffi. Nothing is loaded before the first call.

There is no maintained binding for Python, and the plugin needs few functions.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Unpack

from bitnet_hal.plugin import CffiLibrary, ErrorDetails

from bitnet_levelzero._ze_api import ffi
from bitnet_levelzero.errors import RESULTS

LIBRARY = "ze_loader.dll" if sys.platform == "win32" else "libze_loader.so.1"


@cache
def load() -> CffiLibrary:
    """Load the loader. Raises OSError if it is not installed; functions that an old one lacks raise AttributeError."""
    return CffiLibrary(ffi, ffi.dlopen(LIBRARY), RESULTS, ("ze_structure_type_t", "zes_structure_type_t"))


def call(name: str, *arguments: Any, doing: str = "", **details: Unpack[ErrorDetails]) -> None:
    """Call a function. Raises the exception of its result if it fails."""
    load().call(name, doing or name, *arguments, **details)


def given(name: str, *arguments: Any, doing: str = "", **details: Unpack[ErrorDetails]) -> Any:
    """Call a function that writes to its last argument, and return that value."""
    return load().given(name, doing or name, *arguments, **details)


def listed(name: str, *arguments: Any) -> list[Any]:
    """Call a count-then-fill function and return its handles or structs."""
    return load().listed(name, name, *arguments)
