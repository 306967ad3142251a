"""Compiled kernels, and launches whose arguments are set once."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyopencl as cl
from bitnet_hal.plugin import BoundLaunch, CompiledKernel

from bitnet_opencl.memory import OpenCLBuffer

Size = tuple[int, int, int]


@dataclass(frozen=True, eq=False, slots=True)
class OpenCLKernel(CompiledKernel):
    """A built program with one kernel. direct: the kernel object of launches that are not recorded."""

    program: cl.Program
    entry: str
    direct: cl.Kernel


OpenCLLaunch = BoundLaunch[OpenCLBuffer, OpenCLKernel]


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A cl_kernel with its arguments set. enqueue: adds it to the device's queue and returns the status."""

    entry: str
    kernel: cl.Kernel
    items: Size
    group: Size
    enqueue: Callable[[], int]


def sizes_of(launch: OpenCLLaunch) -> tuple[Size, Size]:
    """Return the work-items of the launch and of a group."""
    group = launch.kernel.tuning.private["GROUP"]
    x, y, z = launch.grid
    return (x * group, y, z), (group, 1, 1)


def set_arguments(kernel: cl.Kernel, launch: OpenCLLaunch) -> None:
    """Set the buffers, then the struct of their offsets and the parameters (bitnet_hal.families.opencl_c)."""
    bound = launch.bound
    for index, (buffer, _, _) in enumerate(bound):
        kernel.set_arg(index, buffer.handle)
    packed = struct.pack(f"={len(bound)}Q", *(offset for _, offset, _ in bound)) + launch.params
    kernel.set_arg(len(bound), packed + bytes(-len(packed) % 8))


@cache
def _driver() -> Any:
    """Return the loader's clEnqueueNDRangeKernel, or None on Windows, whose libraries do not export it.

    A direct call avoids the event and the microsecond that pyopencl adds.
    """
    try:
        return ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None


def _enqueue(*launch: Any) -> int:
    cl.enqueue_nd_range_kernel(*launch)
    return 0


def prepared(queue: cl.CommandQueue, launch: OpenCLLaunch) -> PreparedLaunch:
    """Return the launch with its own kernel object, for this queue."""
    kernel = cl.Kernel(launch.kernel.program, launch.kernel.entry)
    items, group = sizes_of(launch)
    set_arguments(kernel, launch)
    call = partial(_enqueue, queue, kernel, items, group)
    if function := _driver():
        size = ctypes.c_size_t * 3
        queue_handle = ctypes.c_void_p(queue.int_ptr)
        kernel_handle = ctypes.c_void_p(kernel.int_ptr)
        call = partial(function, queue_handle, kernel_handle, 3, None, size(*items), size(*group), 0, None, None)
    return PreparedLaunch(launch.kernel.entry, kernel, items, group, call)
