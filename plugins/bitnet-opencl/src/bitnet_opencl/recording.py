"""Kernels, and launches whose arguments are set once and stay so."""

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
    """A built program with one kernel. `direct` serves launches that are not recorded."""

    program: cl.Program
    entry: str
    direct: cl.Kernel


OpenCLLaunch = BoundLaunch[OpenCLBuffer, OpenCLKernel]


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A cl_kernel with its arguments. enqueue: puts it into the device's queue; 0 or a status."""

    entry: str
    kernel: cl.Kernel
    items: Size
    group: Size
    enqueue: Callable[[], int]


def sizes_of(launch: OpenCLLaunch) -> tuple[Size, Size]:
    """Work-items of the launch, and of a group."""
    group, (x, y, z) = launch.kernel.tuning.private["GROUP"], launch.grid
    return (x * group, y, z), (group, 1, 1)


def set_arguments(kernel: cl.Kernel, launch: OpenCLLaunch) -> None:
    """Buffers, then offsets and parameters as one struct (bitnet_hal.families.opencl_c)."""
    bound = launch.bound
    for index, (buffer, _, _) in enumerate(bound):
        kernel.set_arg(index, buffer.handle)
    packed = struct.pack(f"={len(bound)}Q", *(offset for _, offset, _ in bound)) + launch.params
    kernel.set_arg(len(bound), packed + bytes(-len(packed) % 8))


@cache
def _driver() -> Any:
    """The loader's clEnqueueNDRangeKernel, with which pyopencl is linked: called directly it does without the event and
    the microsecond that pyopencl adds. None on Windows, where a library does not show what it is linked with."""
    try:
        return ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None


def _enqueue(*launch: Any) -> int:
    cl.enqueue_nd_range_kernel(*launch)
    return 0


def prepared(queue: cl.CommandQueue, launch: OpenCLLaunch) -> PreparedLaunch:
    """The launch with a kernel object of its own, for this queue."""
    kernel, (items, group) = cl.Kernel(launch.kernel.program, launch.kernel.entry), sizes_of(launch)
    set_arguments(kernel, launch)
    call = partial(_enqueue, queue, kernel, items, group)
    if function := _driver():
        size = ctypes.c_size_t * 3
        handles = ctypes.c_void_p(queue.int_ptr), ctypes.c_void_p(kernel.int_ptr)
        call = partial(function, *handles, 3, None, size(*items), size(*group), 0, None, None)
    return PreparedLaunch(launch.kernel.entry, kernel, items, group, call)
