"""Buffers, and page-locked memory that the device copies from and to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl
from bitnet_hal.plugin import MemoryKind

SLOTS, SLOT = 3, 4 << 20
"""Slots of page-locked memory, of which the last is for downloads, and their bytes."""


@dataclass(eq=False, slots=True)
class OpenCLBuffer:
    """A cl_mem; host: its bytes as a numpy array where it is a slot, which stays mapped."""

    handle: cl.Buffer
    nbytes: int
    kind: MemoryKind
    host: Any = None


def pinned(context: cl.Context, queue: cl.CommandQueue) -> OpenCLBuffer:
    """A slot."""
    handle = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, SLOT)
    flags, dtype = cl.map_flags.WRITE, np.dtype(np.uint8)
    memory, _ = cl.enqueue_map_buffer(queue, handle, flags, 0, (SLOT,), dtype, is_blocking=True)
    return OpenCLBuffer(handle, SLOT, MemoryKind.HOST, np.asarray(memory))
