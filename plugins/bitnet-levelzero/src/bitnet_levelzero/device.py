"""The Level Zero device: one context, one queue."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType

from bitnet_hal.errors import GpuError, OutOfMemoryError
from bitnet_hal.families.pinned import host_view
from bitnet_hal.plugin import Constants, Handle, KernelSpec, LaunchRecording, MemoryKind, Tuning, TuningMixin, words_of

from bitnet_levelzero.api import call, given, load
from bitnet_levelzero.compile import Compiler
from bitnet_levelzero.describe import ALIGNMENT, LevelZeroGpu, free_memory
from bitnet_levelzero.memory import GRANULE, Context, LevelZeroBuffer, allocated
from bitnet_levelzero.recording import LevelZeroKernel, QueuedDevice
from bitnet_levelzero.tuning import TUNINGS, program_name

SLOTS, SLOT = 3, 4 << 20
"""Slots of page-locked memory, of which the last is for downloads, and their bytes."""
_TIMED_AND_VISIBLE = 5  # flags of an event pool: kernel timestamps, and the host may read them


class LevelZeroDevice(TuningMixin, QueuedDevice):
    """See bitnet_hal.device.Device. Its tunings are those that the wheel has programs for."""

    select_tuning = staticmethod(TUNINGS.tune)

    def __init__(self, found: LevelZeroGpu) -> None:
        super().__init__(found.info, Context(found.driver, found.device, found.ordinal))
        self._found = found
        host = [allocated(self._context, SLOT, MemoryKind.HOST) for _ in range(SLOTS)]
        slots = [LevelZeroBuffer(address, SLOT, MemoryKind.HOST) for address in host]
        self._stage(slots, [host_view(address, SLOT) for address in host])
        self._compiler = Compiler(self._context, (found.info.name, found.info.driver))

    def free_memory(self) -> int:
        """By sysman, where it is on offer."""
        return free_memory(self._found)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> LevelZeroBuffer:
        try:
            address = allocated(self._context, nbytes, kind)
        except OutOfMemoryError as error:
            error.free = self.free_memory()
            raise
        zero, size = load().ffi.new("uint32_t *"), words_of(nbytes, GRANULE)
        self._append(self._commands(), "MemoryFill", address, zero, 4, size)
        return LevelZeroBuffer(address, nbytes, kind)

    def _wrap(self, host: memoryview) -> LevelZeroBuffer | None:
        """Host memory in place, where kernels may read whatever the host can."""
        address = load().address(host)
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
        places = target.address + target_at, source.address + source_at
        self._append(self._commands(), "MemoryCopy", *places, nbytes)

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> LevelZeroKernel:
        module, handle = self._compiler.kernel(program_name(spec, constants, tuning), tuning.private["GROUP"])
        return LevelZeroKernel(spec, MappingProxyType(dict(constants)), tuning, module, handle)

    def _release(self, kernel: LevelZeroKernel) -> None:
        self._wait()
        self._context.destroy("Kernel", kernel.handle)
        self._context.destroy("Module", kernel.module)

    def _timings(self, recording: LaunchRecording[LevelZeroBuffer, LevelZeroKernel]) -> list[float]:
        """By the device's clock, an event for each launch."""
        count, create, destroy = len(recording.launches), self._context.create, self._context.destroy
        wanted = {"flags": _TIMED_AND_VISIBLE, "count": count}
        pool = create("EventPool", self._context.handle, wanted, 0, self._null)
        events = [create("Event", pool, {"index": at, "signal": 1}) for at in range(count)]
        self._wait()
        for launch, event in zip(recording.launches, events, strict=True):
            self._launch(self._commands(), launch, event)
        self._wait()
        seconds = [self._seconds(event) for event in events]
        for event in events:
            destroy("Event", event)
        destroy("EventPool", pool)
        return seconds

    def _seconds(self, event: Handle) -> float:
        times = given("zeEventQueryKernelTimestamp", event)["global"]
        ticks = (times["kernelEnd"] - times["kernelStart"]) % (1 << int(self.info.extra["tick_bits"]))
        return float(ticks * int(self.info.extra["tick_ns"]) * 1e-9)

    def _close(self) -> None:
        with suppress(GpuError):  # a device that was lost has nothing left to free
            for slot in self._slots:
                call("zeMemFree", self._context.handle, slot.address)
            self._context.close()
