"""Buffers, and page-locked staging memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl
from bitnet_hal.plugin import MemoryKind

SLOTS = 3
"""Slots of page-locked memory, the last one for downloads."""
SLOT = 4 << 20
"""Bytes of a slot."""


@dataclass(eq=False, slots=True)
class OpenCLBuffer:
    """A cl_mem. host: the bytes of a staging slot, which stays mapped, as a numpy array."""

    handle: cl.Buffer
    nbytes: int
    kind: MemoryKind
    host: Any = None


def pinned(context: cl.Context, queue: cl.CommandQueue) -> OpenCLBuffer:
    """Allocate a staging slot and map it."""
    handle = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, SLOT)
    dtype = np.dtype(np.uint8)
    memory, _ = cl.enqueue_map_buffer(queue, handle, cl.map_flags.WRITE, 0, (SLOT,), dtype, is_blocking=True)
    return OpenCLBuffer(handle, SLOT, MemoryKind.HOST, np.asarray(memory))
