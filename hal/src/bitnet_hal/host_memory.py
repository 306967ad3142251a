"""Sizes of the host's memory in bytes."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


class _MemoryStatus(ctypes.Structure):
    """The structure MEMORYSTATUSEX of Windows."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    )


def total_memory() -> int:
    """Return the bytes of memory of this machine, 0 if unknown."""
    return _meminfo("MemTotal") or _windows().total or _pages("SC_PHYS_PAGES")


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping; all memory if unknown."""
    return _meminfo("MemAvailable") or _windows().available or _pages("SC_AVPHYS_PAGES") or total_memory()


def _meminfo(name: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in MEMINFO.read_text("ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def _windows() -> _MemoryStatus:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if sys.platform == "win32":
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return status


def _pages(name: str) -> int:
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS not every name
        return max(0, os.sysconf(name)) * os.sysconf("SC_PAGE_SIZE")
    return 0
