"""What the process holds in memory."""

from __future__ import annotations

import ctypes
import gc
import platform

import psutil


def resident() -> int:
    """Bytes of the process in memory, after it gave back what it does not use.

    Garbage is collected, and glibc returns freed memory that it has kept, out of which a leak could be served unseen.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    return int(psutil.Process().memory_info().rss)
