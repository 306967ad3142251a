"""Measure launches on the device itself: they are enqueued while it is busy, so that it never waits for the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyopencl as cl
from bitnet_opencl.device import OpenCLDevice

SOURCE = """
__kernel void spin(__global uint *o, const uint rounds) {
    uint v = o[0];
    for (uint i = 0; i < rounds; ++i) v = v * 1664525u + 1013904223u;
    o[0] = v;
}
"""
ROUNDS = 2_000_000
REPEATS = 5


def device_seconds(device: OpenCLDevice, enqueue: Callable[[], object]) -> float:
    """Return the minimum seconds of the commands that `enqueue` adds after a kernel of several milliseconds."""
    queue = device._queue
    kernel = cl.Kernel(cl.Program(device._context, SOURCE).build(), "spin")
    memory = cl.Buffer(device._context, cl.mem_flags.READ_WRITE, 16)  # a kernel does not keep its arguments alive
    kernel.set_args(memory, np.uint32(ROUNDS))

    def seconds(action: Callable[[], object]) -> float:
        best = 1e9
        for _ in range(REPEATS):
            queue.finish()
            start = time.perf_counter()
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
            queue.flush()
            action()
            queue.finish()
            best = min(best, time.perf_counter() - start)
        return best

    return seconds(enqueue) - seconds(lambda: None)
