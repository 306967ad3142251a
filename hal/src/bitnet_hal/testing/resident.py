"""The resident memory of this process."""

from __future__ import annotations

import ctypes
import gc
import platform

import psutil


def resident() -> int:
    """Return the process's resident bytes after releasing unused memory.

    Collects garbage and makes glibc return freed memory, which would otherwise hide a leak.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    return int(psutil.Process().memory_info().rss)
