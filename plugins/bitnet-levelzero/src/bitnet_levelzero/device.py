"""The Level Zero device: one context, one queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_void_p
from types import MappingProxyType

import numpy as np
from bitnet_core.errors import GpuError
from bitnet_core.hal.base import BaseDevice, Recorded
from bitnet_core.hal.device import MemoryKind, Tuning
from bitnet_core.hal.staging import StagingRing
from bitnet_core.kernels.spec import KernelSpec

from bitnet_levelzero.api import ContextDesc, EventDesc, EventPoolDesc, Timestamps, call, created, load
from bitnet_levelzero.compile import Compiler
from bitnet_levelzero.describe import ALIGNMENT, Found, free_memory
from bitnet_levelzero.errors import check
from bitnet_levelzero.memory import GRANULE, STAGING_BYTES, Allocator, LevelZeroBuffer, Slot
from bitnet_levelzero.recording import CommandList, LevelZeroKernel, LevelZeroLaunch, Queue
from bitnet_levelzero.tuning import program_name, tune

SLOTS = 3
"""Of page-locked memory: two for uploads, one for downloads."""
_KERNEL_TIMESTAMP, _HOST_VISIBLE = 4, 1
"""Flags of an event pool."""

LevelZeroRecorded = Recorded[LevelZeroBuffer, LevelZeroKernel]


class _Copies:
    """What the staging ring asks of the queue (bitnet_core.hal.staging.Copies)."""

    def __init__(self, queue: Queue, slots: Sequence[Slot], seconds: float) -> None:
        self._queue, self._slots, self._seconds = queue, slots, seconds

    def copy(self, slot: int, start: int, nbytes: int, buffer: LevelZeroBuffer, offset: int) -> None:
        """See Copies."""
        self._queue.commands.copy(buffer.address + offset, self._slots[slot].address + start, nbytes)

    def fence(self) -> c_void_p:
        """See Copies."""
        return self._queue.fence()

    def wait(self, fence: c_void_p) -> None:
        """See Copies."""
        check(load().zeFenceHostSynchronize(fence, int(self._seconds * 1e9)), "wait for an upload")


class LevelZeroDevice(BaseDevice[LevelZeroBuffer, LevelZeroKernel]):
    """See bitnet_core.hal.device.Device."""

    def __init__(self, found: Found) -> None:
        super().__init__(found.info)
        self._device, name = found.device, found.info.name
        self._context = created("zeContextCreate", found.driver, byref(ContextDesc()), doing="open", device=name)
        self._queue = Queue(self._context, found.device, found.ordinal, name)
        self._allocator = Allocator(self._context, found.device, name)
        identity = (name, found.info.driver)
        self._compiler = Compiler(self._context, found.device, name, identity, logs=found.alone)
        self._slots = [Slot(self._allocator) for _ in range(SLOTS)]
        copies = _Copies(self._queue, self._slots[1:], self.timeout)
        self._ring: StagingRing[LevelZeroBuffer] = StagingRing([slot.bytes for slot in self._slots[1:]], copies)
        self._living: set[LevelZeroKernel] = set()

    def free_memory(self) -> int:
        """By sysman, where it is on offer."""
        return free_memory(self._device)

    def held_bytes(self) -> int:
        """Page-locked memory."""
        return SLOTS * STAGING_BYTES

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """One of those that the wheel has programs for."""
        return tune(spec, params)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> LevelZeroBuffer:
        address = self._allocator.alloc(nbytes, kind, self.free_memory())
        self._queue.commands.zero(address, -(-nbytes // GRANULE) * GRANULE)
        return LevelZeroBuffer(address, nbytes, kind)

    def _wrap(self, host: memoryview) -> LevelZeroBuffer | None:
        """Host memory in place, where kernels may read whatever the host can."""
        if not self.info.extra["system_memory"]:
            return None
        address = int(np.frombuffer(host, np.uint8).ctypes.data)
        if address % ALIGNMENT:
            return None
        return LevelZeroBuffer(address, host.nbytes, MemoryKind.SHARED, wrapped=True)

    def _free(self, buffer: LevelZeroBuffer) -> None:
        if not self._lost:
            self._wait()
        if not buffer.wrapped:
            self._allocator.free(buffer.address)

    def _upload(self, buffer: LevelZeroBuffer, offset: int, source: memoryview) -> None:
        self._ring.upload(buffer, offset, source)

    def _download(self, buffer: LevelZeroBuffer, offset: int, target: memoryview) -> None:
        slot = self._slots[0]
        for start in range(0, target.nbytes, STAGING_BYTES):
            part = target[start : start + STAGING_BYTES]
            self._queue.commands.copy(slot.address, buffer.address + offset + start, part.nbytes)
            self._wait()
            part[:] = slot.bytes[: part.nbytes]

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

    def _run(self, launch: LevelZeroLaunch) -> None:
        self._queue.commands.launch(launch)

    def _record(self, recording: LevelZeroRecorded) -> None:
        """A command list, closed, that is executed as often as wanted."""
        commands = self._queue.new_list()
        for launch in recording.launches:
            commands.launch(launch)
        commands.close()
        recording.native = commands

    def _replay(self, recording: LevelZeroRecorded) -> None:
        self._queue.send()
        self._queue.execute(recording.native)

    def _forget(self, recording: LevelZeroRecorded) -> None:
        commands: CommandList = recording.native
        if not self._lost:
            self._wait()
        commands.destroy()

    def _timings(self, recording: LevelZeroRecorded) -> list[float]:
        """By the device's clock, an event for each launch."""
        count, name = len(recording.launches), self.info.name
        if not count:
            return []
        tick, bits = float(self.info.extra["tick_ns"]), int(self.info.extra["tick_bits"])
        desc = EventPoolDesc(flags=_KERNEL_TIMESTAMP | _HOST_VISIBLE, count=count)
        pool = created("zeEventPoolCreate", self._context, byref(desc), 0, None, device=name)
        events = [created("zeEventCreate", pool, byref(EventDesc(index=at, signal=1))) for at in range(count)]
        self._wait()
        for launch, event in zip(recording.launches, events, strict=True):
            self._queue.commands.launch(launch, event)
        self._wait()
        seconds = []
        for event in events:
            times = Timestamps()
            call("zeEventQueryKernelTimestamp", event, byref(times), device=name)
            seconds.append((times.end - times.start) % (1 << bits) * tick * 1e-9)
            call("zeEventDestroy", event)
        call("zeEventPoolDestroy", pool)
        return seconds

    def _wait(self) -> None:
        self._queue.wait(self.timeout)
        self._ring.drained()

    def _close(self) -> None:
        with suppress(GpuError):  # a device that was lost has nothing left to free
            for slot in self._slots:
                self._allocator.free(slot.address)
            for kernel in self._living:
                kernel.free()
            self._queue.destroy()
            call("zeContextDestroy", self._context)
