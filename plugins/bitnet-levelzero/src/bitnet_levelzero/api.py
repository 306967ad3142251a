"""The binding: what tools/ze_api.h declares of Level Zero, by cffi; nothing is loaded before the first call. There is
no well-kept binding for Python, and so few functions need none.
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
    """The loader; OSError where it is not installed. An old one lacks some functions: AttributeError."""
    return CffiLibrary(ffi, ffi.dlopen(LIBRARY), RESULTS, ("ze_structure_type_t", "zes_structure_type_t"))


def call(name: str, *arguments: Any, doing: str = "", **details: Unpack[ErrorDetails]) -> None:
    """Call a function; the exception of its result if it fails."""
    load().call(name, doing or name, *arguments, **details)


def given(name: str, *arguments: Any, doing: str = "", **details: Unpack[ErrorDetails]) -> Any:
    """What a function gives as its last argument."""
    return load().given(name, doing or name, *arguments, **details)


def listed(name: str, *arguments: Any) -> list[Any]:
    """All handles or structures that a function counts first and then gives."""
    return load().listed(name, name, *arguments)
