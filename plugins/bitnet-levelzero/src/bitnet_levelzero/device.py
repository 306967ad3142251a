"""The Level Zero device: one context, one queue."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from ctypes import byref, c_void_p
from types import MappingProxyType

import numpy as np
from bitnet_core.errors import GpuError, OutOfMemoryError
from bitnet_core.hal.base import Launch, Recorded
from bitnet_core.hal.device import MemoryKind, Tuning
from bitnet_core.hal.staged import StagedDevice
from bitnet_core.hal.stream import host_view
from bitnet_core.kernels.spec import KernelSpec

from bitnet_levelzero.api import ContextDesc, EventDesc, EventPoolDesc, Timestamps, call, created
from bitnet_levelzero.compile import Compiler
from bitnet_levelzero.describe import ALIGNMENT, Found, free_memory
from bitnet_levelzero.memory import GRANULE, Context, LevelZeroBuffer, allocated
from bitnet_levelzero.recording import CommandList, LevelZeroKernel, Queue
from bitnet_levelzero.tuning import TUNINGS, program_name

SLOTS, SLOT = 3, 4 << 20
"""Slots of page-locked memory, of which the last is for downloads, and their bytes."""
_TIMED_AND_VISIBLE = 5  # flags of an event pool: kernel timestamps, and the host may read them


class LevelZeroDevice(StagedDevice[LevelZeroBuffer, LevelZeroKernel]):
    """See bitnet_core.hal.device.Device."""

    def __init__(self, found: Found) -> None:
        super().__init__(found.info)
        self._found = found
        context = created("zeContextCreate", found.driver, byref(ContextDesc()))
        self._context = Context(context, found.device, found.ordinal)
        self._queue = Queue(self._context, self.timeout)
        host = [allocated(self._context, SLOT, MemoryKind.HOST) for _ in range(SLOTS)]
        slots = [LevelZeroBuffer(address, SLOT, MemoryKind.HOST) for address in host]
        self._stage(slots, [host_view(address, SLOT) for address in host])
        self._compiler = Compiler(self._context, (found.info.name, found.info.driver))
        self._living: set[LevelZeroKernel] = set()

    def free_memory(self) -> int:
        """By sysman, where it is on offer."""
        return free_memory(self._found)

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """One of those that the wheel has programs for."""
        return TUNINGS.tune(spec.name, params)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> LevelZeroBuffer:
        try:
            address = allocated(self._context, nbytes, kind)
        except OutOfMemoryError as error:
            error.free = self.free_memory()
            raise
        self._queue.commands.zero(address, -(-nbytes // GRANULE) * GRANULE)
        return LevelZeroBuffer(address, nbytes, kind)

    def _wrap(self, host: memoryview) -> LevelZeroBuffer | None:
        """Host memory in place, where kernels may read whatever the host can."""
        address = int(np.frombuffer(host, np.uint8).ctypes.data)
        if address % ALIGNMENT or not self.info.extra["system_memory"]:
            return None
        return LevelZeroBuffer(address, host.nbytes, MemoryKind.SHARED, wrapped=True)

    def _free(self, buffer: LevelZeroBuffer) -> None:
        if not self._lost:
            self._wait()
        if not buffer.wrapped:
            call("zeMemFree", self._context.handle, buffer.address, doing="free")

    def _copy(
        self, source: LevelZeroBuffer, source_at: int, target: LevelZeroBuffer, target_at: int, nbytes: int
    ) -> None:
        self._queue.commands.copy(target.address + target_at, source.address + source_at, nbytes)

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> LevelZeroKernel:
        module, handle = self._compiler.kernel(program_name(spec, constants, tuning), tuning.private["GROUP"])
        kernel = LevelZeroKernel(spec, MappingProxyType(dict(constants)), tuning, module, handle)
        self._living.add(kernel)
        return kernel

    def _release(self, kernel: LevelZeroKernel) -> None:
        self._wait()
        self._living.remove(kernel)
        kernel.free()

    def _run(self, launch: Launch[LevelZeroBuffer, LevelZeroKernel]) -> None:
        self._queue.commands.launch(launch)

    def _record(self, recording: Recorded[LevelZeroBuffer, LevelZeroKernel]) -> None:
        """A command list, closed, that is executed as often as wanted."""
        commands = recording.native = CommandList(self._context)
        for launch in recording.launches:
            commands.launch(launch)
        commands.close()

    def _replay(self, recording: Recorded[LevelZeroBuffer, LevelZeroKernel]) -> None:
        self._queue.send()
        self._queue.execute(recording.native)

    def _forget(self, recording: Recorded[LevelZeroBuffer, LevelZeroKernel]) -> None:
        if not self._lost:
            self._wait()
        recording.native.destroy()

    def _timings(self, recording: Recorded[LevelZeroBuffer, LevelZeroKernel]) -> list[float]:
        """By the device's clock, an event for each launch."""
        count = len(recording.launches)
        desc = EventPoolDesc(flags=_TIMED_AND_VISIBLE, count=max(1, count))
        pool = created("zeEventPoolCreate", self._context.handle, byref(desc), 0, None)
        events = [created("zeEventCreate", pool, byref(EventDesc(index=at, signal=1))) for at in range(count)]
        self._wait()
        for launch, event in zip(recording.launches, events, strict=True):
            self._queue.commands.launch(launch, event)
        self._wait()
        seconds = [self._seconds(event) for event in events]
        for event in events:
            call("zeEventDestroy", event)
        call("zeEventPoolDestroy", pool)
        return seconds

    def _seconds(self, event: c_void_p) -> float:
        times = Timestamps()
        call("zeEventQueryKernelTimestamp", event, byref(times))
        ticks = (times.end - times.start) % (1 << int(self.info.extra["tick_bits"]))
        return float(ticks * int(self.info.extra["tick_ns"]) * 1e-9)

    def _wait(self) -> None:
        self._queue.wait()
        self._ring.drained()

    def _fence(self) -> c_void_p:
        return self._queue.fence()

    def _reach(self, fence: c_void_p) -> None:
        self._queue.wait(fence)

    def _close(self) -> None:
        with suppress(GpuError):  # a device that was lost has nothing left to free
            for slot in self._slots:
                call("zeMemFree", self._context.handle, slot.address)
            for kernel in self._living:
                kernel.free()
            self._queue.destroy()
            call("zeContextDestroy", self._context.handle)
