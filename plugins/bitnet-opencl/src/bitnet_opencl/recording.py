"""Launches with their arguments set, kept for replay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyopencl as cl
from bitnet_core.hal.device import View
from bitnet_core.kernels.spec import KernelSpec

Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OpenCLKernel:
    """A built program with one kernel. `direct` serves launches that are not recorded.

    parts: memory for what groups hand to each other, where the source has an argument for it.
    """

    spec: KernelSpec
    constants: Mapping[str, int]
    program: cl.Program
    entry: str
    direct: cl.Kernel
    parts: cl.Buffer | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A cl_kernel whose arguments are set and stay so. enqueue: puts it into the device's queue; 0 or a status."""

    source: OpenCLKernel
    views: Sequence[View]
    params: bytes
    kernel: cl.Kernel
    items: Size
    group: Size
    enqueue: Callable[[], int]

    @property
    def values(self) -> dict[str, int | float]:
        """The parameters."""
        return self.source.spec.unpack(self.params)


@dataclass(eq=False, slots=True)
class OpenCLRecording:
    """Enqueued one by one on the in-order queue, and nothing is created."""

    launches: list[Launch] = field(default_factory=list)

    def close(self) -> None:
        """Forget the launches."""
        self.launches.clear()


class Enqueuer:
    """Enqueues of one queue, without the event and the microsecond that pyopencl adds to each where that can be helped:
    its module is linked with the driver's loader, whose function is called directly."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self._queue = queue
        try:
            self._function: Any = ctypes.CDLL(cl._cl.__file__).clEnqueueNDRangeKernel
        except (OSError, AttributeError):  # Windows: a library does not show what it is linked with
            self._function = None

    def prepare(self, kernel: cl.Kernel, items: Size, group: Size) -> Callable[[], int]:
        """A function that enqueues the kernel and gives the status."""
        if self._function is None:
            queue = self._queue

            def enqueue() -> int:
                cl.enqueue_nd_range_kernel(queue, kernel, items, group)
                return 0

            return enqueue
        size = ctypes.c_size_t * 3
        handles = ctypes.c_void_p(self._queue.int_ptr), ctypes.c_void_p(kernel.int_ptr)
        return partial(self._function, *handles, 3, None, size(*items), size(*group), 0, None, None)
