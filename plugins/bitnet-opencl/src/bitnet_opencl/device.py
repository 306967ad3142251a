"""The OpenCL device: one context, one in-order queue."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType

import numpy as np
import pyopencl as cl
from bitnet_core.hal.base import TIMEOUT_VARIABLE, BaseDevice, Recorded
from bitnet_core.hal.device import DeviceInfo, DeviceType, MemoryKind, TransferMode, Tuning
from bitnet_core.hal.found import numbered
from bitnet_core.kernels.spec import KernelSpec

from bitnet_opencl.clc.sources import Dialect, entry_name, program_source
from bitnet_opencl.clc.tuning import Profile, offered, tune
from bitnet_opencl.compile import Compiler
from bitnet_opencl.describe import abilities, default_profile, find_devices, query
from bitnet_opencl.errors import BACKEND, check, checked
from bitnet_opencl.memory import STAGING_BYTES, OpenCLBuffer, PinnedSlots
from bitnet_opencl.recording import Enqueuer, OpenCLKernel, OpenCLLaunch, Prepared, set_arguments, sizes_of

_PAGE, _LINE = 4096, 64
"""Integrated GPUs use host memory in place from page to whole cache line."""
_ZEROS = np.zeros(16, dtype=np.uint8)


class OpenCLDevice(BaseDevice[OpenCLBuffer, OpenCLKernel]):
    """See bitnet_core.hal.device.Device."""

    def __init__(self, device: cl.Device, info: DeviceInfo) -> None:
        super().__init__(info)
        self._device = device
        self._abilities = abilities(device)
        self.profile: Profile = default_profile(device, info)
        self._patient = info.type in (DeviceType.CPU, DeviceType.SOFTWARE) and TIMEOUT_VARIABLE not in os.environ
        with self._doing("open"):
            self._context = cl.Context([device])
            self._queue = cl.CommandQueue(self._context, device)
            staged = info.transfer is not TransferMode.UNIFIED
            self._slots = PinnedSlots(self._queue, self._context, self._reach) if staged else None
        self._compiler = Compiler(self._context, device)
        self._enqueuer = Enqueuer(self._queue)

    def _doing(self, operation: str, requested: int = 0) -> AbstractContextManager[None]:
        free = self.free_memory() if requested else -1
        return checked(operation, self.info.name, requested=requested, free=free)

    def free_memory(self) -> int:
        """AMD's drivers tell; OpenCL itself has no such question."""
        kibibytes = query(self._device, "global_free_memory_amd", None)
        return int(kibibytes[0]) * 1024 if kibibytes else -1

    def held_bytes(self) -> int:
        """Pinned staging memory."""
        return 2 * STAGING_BYTES if self._slots else 0

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """For this class of device; see bitnet_opencl.clc.tuning."""
        return tune(self.profile, spec, constants, params)

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> list[Tuning]:
        """See bitnet_core.hal.device.TunableDevice."""
        return offered(self.profile, spec, constants, params)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> OpenCLBuffer:
        """HOST and SHARED memory is pinned by the driver (CL_MEM_ALLOC_HOST_PTR)."""
        flags = cl.mem_flags.READ_WRITE | (0 if kind is MemoryKind.DEVICE else cl.mem_flags.ALLOC_HOST_PTR)
        size = -(-nbytes // _ZEROS.nbytes) * _ZEROS.nbytes
        with self._doing("alloc", requested=nbytes):
            handle = cl.Buffer(self._context, flags, size)
            cl.enqueue_fill_buffer(self._queue, handle, _ZEROS, 0, size)
        return OpenCLBuffer(handle, nbytes, kind)

    def _wrap(self, host: memoryview) -> OpenCLBuffer | None:
        """Host memory in place (CL_MEM_USE_HOST_PTR) where the device works in host memory."""
        if self.info.transfer is not TransferMode.UNIFIED or host.nbytes > self.info.max_allocation:
            return None
        data = np.frombuffer(host, dtype=np.uint8)
        if self.info.type is DeviceType.INTEGRATED and (data.ctypes.data % _PAGE or data.nbytes % _LINE):
            return None  # the driver would make a copy
        with self._doing("wrap", requested=host.nbytes):
            handle = cl.Buffer(self._context, cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR, hostbuf=data)
        return OpenCLBuffer(handle, host.nbytes, MemoryKind.SHARED)

    def _free(self, buffer: OpenCLBuffer) -> None:
        """The driver waits for what still uses it."""
        with self._doing("free"):
            buffer.handle.release()

    def _upload(self, buffer: OpenCLBuffer, offset: int, source: memoryview) -> None:
        if self._slots:
            with self._doing("upload"):
                self._slots.ring.upload(buffer, offset, source)
            return
        self._wait()  # within the limit, which a blocking copy has not
        with self._doing("upload"):
            host = np.frombuffer(source, dtype=np.uint8)
            cl.enqueue_copy(self._queue, buffer.handle, host, dst_offset=offset, is_blocking=True)

    def _download(self, buffer: OpenCLBuffer, offset: int, target: memoryview) -> None:
        self._wait()
        with self._doing("download"):
            host = np.frombuffer(target, dtype=np.uint8)
            cl.enqueue_copy(self._queue, host, buffer.handle, src_offset=offset, is_blocking=True)

    def _copy(self, source: OpenCLBuffer, source_at: int, target: OpenCLBuffer, target_at: int, nbytes: int) -> None:
        to, origin = target.handle, source.handle
        with self._doing("copy"):
            cl.enqueue_copy(self._queue, to, origin, src_offset=source_at, dst_offset=target_at, byte_count=nbytes)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> OpenCLKernel:
        entry, dialect = entry_name(spec, tuning), Dialect.NVIDIA if self.profile.nvidia else Dialect.PORTABLE
        source = program_source(spec, constants, tuning, dialect)
        program = self._compiler.build(entry, source, self._abilities)
        with self._doing("compile"):
            direct = cl.Kernel(program, entry)
        return OpenCLKernel(spec, MappingProxyType(dict(constants)), tuning, program, entry, direct)

    def _run(self, launch: OpenCLLaunch) -> None:
        kernel = launch.kernel
        with self._doing(f"launch of {kernel.entry}"):
            set_arguments(kernel.direct, launch)
            cl.enqueue_nd_range_kernel(self._queue, kernel.direct, *sizes_of(launch))

    def _record(self, recording: Recorded[OpenCLBuffer, OpenCLKernel]) -> None:
        """A kernel object for each launch, whose arguments stay."""
        with self._doing("record"):
            recording.native = tuple(self._enqueuer.prepare(launch) for launch in recording.launches)

    def _replay(self, recording: Recorded[OpenCLBuffer, OpenCLKernel]) -> None:
        prepared: tuple[Prepared, ...] = recording.native
        for one in prepared:
            if status := one.enqueue():
                check(status, f"replay of {one.entry}", self.info.name)
        with self._doing("replay"):
            self._queue.flush()

    def _timings(self, recording: Recorded[OpenCLBuffer, OpenCLKernel]) -> list[float]:
        """By the device's clock; NVIDIA's driver counts about 5 us of its own for each."""
        self._wait()
        prepared: tuple[Prepared, ...] = recording.native
        with self._doing("timings"):
            properties = cl.command_queue_properties.PROFILING_ENABLE
            queue = cl.CommandQueue(self._context, self._device, properties=properties)
            events = [cl.enqueue_nd_range_kernel(queue, one.kernel, one.items, one.group) for one in prepared]
            queue.finish()
            return [(event.profile.end - event.profile.start) * 1e-9 for event in events]

    def _wait(self) -> None:
        with self._doing("synchronize"):
            self._reach(cl.enqueue_marker(self._queue))
        if self._slots:
            self._slots.drained()

    def _reach(self, event: cl.Event) -> None:
        """Wait for an event; a device that is no GPU has as long as it takes, unless a limit was asked for."""
        if self._patient:
            event.wait()
            return
        self._queue.flush()
        done = cl.command_execution_status.COMPLETE
        self._until(lambda: event.command_execution_status <= done, "synchronize")
        check(event.command_execution_status, "synchronize", self.info.name)

    def _close(self) -> None:
        if self._slots and not self._lost:
            with checked("close"):
                self._slots.close()


def open_device(index: int) -> OpenCLDevice:
    """The one with this index; DeviceNotFoundError if there is none."""
    return OpenCLDevice(*numbered(find_devices(), index, BACKEND))
