"""The OpenCL device: one context, one in-order queue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from bitnet_hal.base import TIMEOUT_VARIABLE
from bitnet_hal.errors import GpuError
from bitnet_hal.families.joined_rotations import COUNTER_BYTES, RotationJoiner
from bitnet_hal.families.opencl_c import program_source
from bitnet_hal.plugin import (
    Constants,
    DeviceType,
    EnumeratedDevice,
    KernelSpec,
    LaunchRecording,
    MemoryKind,
    StagedDevice,
    TransferMode,
    Tuning,
    TuningMixin,
    words_of,
)

from bitnet_opencl import clc
from bitnet_opencl.clc import tuning
from bitnet_opencl.compile import Compiler
from bitnet_opencl.describe import abilities, query
from bitnet_opencl.errors import check, checked, converted
from bitnet_opencl.memory import SLOTS, OpenCLBuffer, pinned
from bitnet_opencl.recording import OpenCLKernel, OpenCLLaunch, PreparedLaunch, prepared, set_arguments, sizes_of

_PAGE = 4096
_CACHE_LINE = 64
"""Integrated GPUs use host memory in place if it begins at a page and consists of whole cache lines."""
_ZEROS = np.zeros(16, dtype=np.uint8)


class OpenCLDevice(TuningMixin, StagedDevice[OpenCLBuffer, OpenCLKernel]):
    """An OpenCL device with one in-order queue. A recording is a list of kernels with their arguments set."""

    select_tuning = staticmethod(tuning.select_tuning)
    candidate_tunings = staticmethod(tuning.candidate_tunings)

    def __init__(self, found: EnumeratedDevice) -> None:
        super().__init__(found.info)
        self._device = found.handle
        self._abilities = abilities(self._device)
        on_cpu = found.info.type in (DeviceType.CPU, DeviceType.SOFTWARE)
        self._patient = on_cpu and TIMEOUT_VARIABLE not in os.environ
        self._copies: list[cl.Event] = []  # kept because dropping an event waits for it
        with self._entered("open"):
            self._context = cl.Context([self._device])
            self._queue = cl.CommandQueue(self._context, self._device)
            slots = [pinned(self._context, self._queue) for _ in range(SLOTS)]
            self._stage(slots, [memoryview(slot.host) for slot in slots])
        self._compiler = Compiler(self._context, self._device)
        self._joiner = RotationJoiner(self._compile, lambda: self._alloc(COUNTER_BYTES, MemoryKind.DEVICE), ["ROOM"])

    def _converted(self, error: Exception, operation: str) -> GpuError | None:
        return converted(error, operation) if isinstance(error, cl.Error) else None

    def free_memory(self) -> int:
        """Return the free bytes that AMD's drivers report, -1 for others: OpenCL itself has no such query."""
        kibibytes = query(self._device, "global_free_memory_amd", None)
        return int(kibibytes[0]) * 1024 if kibibytes else -1

    def _alloc(self, nbytes: int, kind: MemoryKind) -> OpenCLBuffer:
        """Allocate zeroed memory; the driver pins HOST and SHARED memory (CL_MEM_ALLOC_HOST_PTR)."""
        flags: int = cl.mem_flags.READ_WRITE
        if kind is not MemoryKind.DEVICE:
            flags |= cl.mem_flags.ALLOC_HOST_PTR
        size = words_of(nbytes, _ZEROS.nbytes)
        with checked("alloc", requested=nbytes, free=self.free_memory()):
            handle = cl.Buffer(self._context, flags, size)
            cl.enqueue_fill_buffer(self._queue, handle, _ZEROS, 0, size)
        return OpenCLBuffer(handle, nbytes, kind)

    def _wrap(self, host: memoryview) -> OpenCLBuffer | None:
        """Use host memory in place (CL_MEM_USE_HOST_PTR) if the device uses host memory, else return None."""
        if self.info.transfer is not TransferMode.UNIFIED or host.nbytes > self.info.max_allocation:
            return None
        data = np.frombuffer(host, dtype=np.uint8)
        aligned = data.ctypes.data % _PAGE == 0 and data.nbytes % _CACHE_LINE == 0
        if self.info.type is DeviceType.INTEGRATED and not aligned:
            return None  # the driver would make a copy
        with checked("wrap", requested=host.nbytes, free=self.free_memory()):
            handle = cl.Buffer(self._context, cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR, hostbuf=data)
        return OpenCLBuffer(handle, host.nbytes, MemoryKind.SHARED)

    def _free(self, buffer: OpenCLBuffer) -> None:
        """Release a buffer; the driver waits for commands that use it."""
        with checked("free"):
            buffer.handle.release()

    def _copy(self, source: OpenCLBuffer, source_at: int, target: OpenCLBuffer, target_at: int, nbytes: int) -> None:
        queue = self._queue
        if source.host is not None:
            part = source.host[source_at : source_at + nbytes]
            copy = cl.enqueue_copy(queue, target.handle, part, dst_offset=target_at, is_blocking=False)
            self._copies.append(copy)
            queue.flush()
        elif target.host is not None:
            part = target.host[target_at : target_at + nbytes]
            copy = cl.enqueue_copy(queue, part, source.handle, src_offset=source_at, is_blocking=False)
            self._copies.append(copy)
        else:
            cl.enqueue_copy(
                queue, target.handle, source.handle, src_offset=source_at, dst_offset=target_at, byte_count=nbytes
            )

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> OpenCLKernel:
        folders = clc.NVIDIA if self.info.extra["nvidia"] else clc.PORTABLE
        entry = tuning.source(spec.name)
        source = program_source(folders, spec, constants, tuning)
        program = self._compiler.build(entry, source, self._abilities)
        return OpenCLKernel(spec, dict(constants), tuning, program, entry, cl.Kernel(program, entry))

    def _run(self, launch: OpenCLLaunch) -> None:
        kernel = launch.kernel
        with checked(f"launch of {kernel.entry}"):
            set_arguments(kernel.direct, launch)
            cl.enqueue_nd_range_kernel(self._queue, kernel.direct, *sizes_of(launch))

    def _record(self, recording: LaunchRecording[OpenCLBuffer, OpenCLKernel]) -> None:
        """Create a kernel object for each launch and set its arguments once; some launches are joined."""
        launches = self._joiner.joined(recording.launches, int(self.info.extra["members"]))
        recording.native = tuple(prepared(self._queue, launch) for launch in launches)

    def _replay_many(self, recording: LaunchRecording[OpenCLBuffer, OpenCLKernel], times: int) -> None:
        launches: tuple[PreparedLaunch, ...] = recording.native
        for _ in range(times):
            for launch in launches:
                if status := launch.enqueue():
                    check(status, f"replay of {launch.entry}")
            self._queue.flush()

    def _timings(self, recording: LaunchRecording[OpenCLBuffer, OpenCLKernel]) -> list[float]:
        """Time each launch by the device's clock, none joined; NVIDIA's driver adds about 5 us per launch."""
        self._wait()
        launches: Sequence[PreparedLaunch] = recording.native
        if len(launches) < len(recording.launches):
            launches = [prepared(self._queue, launch) for launch in recording.launches]
        properties = cl.command_queue_properties.PROFILING_ENABLE
        queue = cl.CommandQueue(self._context, self._device, properties=properties)
        events = [cl.enqueue_nd_range_kernel(queue, launch.kernel, launch.items, launch.group) for launch in launches]
        queue.finish()
        return [(event.profile.end - event.profile.start) * 1e-9 for event in events]

    def _wait(self) -> None:
        try:
            self._reach(self._fence())
        except cl.Error as error:
            raise converted(error, "synchronize") from error
        self._copies.clear()
        self._ring.drained()

    def _fence(self) -> cl.Event:
        return cl.enqueue_marker(self._queue)

    def _reach(self, fence: cl.Event) -> None:
        """Wait for an event; on a CPU there is no time limit unless the user set one."""
        if self._patient:
            fence.wait()
            return
        self._queue.flush()
        done = cl.command_execution_status.COMPLETE
        self._until(lambda: fence.command_execution_status <= done, "synchronize")
        check(fence.command_execution_status, "synchronize")

    def _kernel_resources(self, kernel: OpenCLKernel) -> dict[str, float]:
        facts = cl.kernel_work_group_info
        asked = {
            "private_bytes": facts.PRIVATE_MEM_SIZE,
            "shared_bytes": facts.LOCAL_MEM_SIZE,
            "subgroup": facts.PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
        }
        found: dict[str, float] = {}
        with checked("query kernel"):
            for name, fact in asked.items():
                value: Any = kernel.direct.get_work_group_info(fact, self._device)
                found[name] = value
        return found

    def _close(self) -> None:
        with checked("close"):
            for slot in [] if self._lost else self._slots:
                slot.host.base.release(self._queue)  # a cl.MemoryMap
                slot.handle.release()
