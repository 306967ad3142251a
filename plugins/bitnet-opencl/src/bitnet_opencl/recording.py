"""Kernels, and launches whose arguments are set once and stay so."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyopencl as cl
from bitnet_core.hal.base import Launch
from bitnet_core.hal.device import Tuning
from bitnet_core.kernels.spec import KernelSpec

from bitnet_opencl.memory import OpenCLBuffer

Size = tuple[int, int, int]


@dataclass(frozen=True, eq=False, slots=True)
class OpenCLKernel:
    """A built program with one kernel. `direct` serves launches that are not recorded."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    program: cl.Program
    entry: str
    direct: cl.Kernel


OpenCLLaunch = Launch[OpenCLBuffer, OpenCLKernel]


@dataclass(frozen=True, slots=True)
class Prepared:
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
    """Buffers, then offsets and parameters as one struct (clc.sources.program_source)."""
    bound = launch.bound
    for index, (buffer, _, _) in enumerate(bound):
        kernel.set_arg(index, buffer.handle)
    packed = struct.pack(f"={len(bound)}Q", *(offset for _, offset, _ in bound)) + launch.params
    kernel.set_arg(len(bound), packed + bytes(-len(packed) % 8))


class Enqueuer:
    """Enqueues of one queue, without the event and the microsecond that pyopencl adds to each where that can be helped:
    its module is linked with the driver's loader, whose function is called directly."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self._queue = queue
        try:
            self._function: Any = ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel
        except (OSError, AttributeError):  # Windows: a library does not show what it is linked with
            self._function = None

    def prepare(self, launch: OpenCLLaunch) -> Prepared:
        """The launch with a kernel object of its own."""
        kernel = cl.Kernel(launch.kernel.program, launch.kernel.entry)
        set_arguments(kernel, launch)
        items, group = sizes_of(launch)
        return Prepared(launch.kernel.entry, kernel, items, group, self._call(kernel, items, group))

    def _call(self, kernel: cl.Kernel, items: Size, group: Size) -> Callable[[], int]:
        if self._function is None:
            queue = self._queue

            def enqueue() -> int:
                cl.enqueue_nd_range_kernel(queue, kernel, items, group)
                return 0

            return enqueue
        size = ctypes.c_size_t * 3
        handles = ctypes.c_void_p(self._queue.int_ptr), ctypes.c_void_p(kernel.int_ptr)
        return partial(self._function, *handles, 3, None, size(*items), size(*group), 0, None, None)
