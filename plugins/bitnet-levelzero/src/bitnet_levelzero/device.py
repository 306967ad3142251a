"""The Level Zero device: one context, one queue."""

from __future__ import annotations

from contextlib import suppress
from types import MappingProxyType

from bitnet_hal.errors import GpuError, OutOfMemoryError
from bitnet_hal.families.pinned import host_view
from bitnet_hal.plugin import Constants, Handle, KernelSpec, LaunchRecording, MemoryKind, Tuning, TuningMixin, words_of

from bitnet_levelzero.api import call, given, load
from bitnet_levelzero.compile import Compiler
from bitnet_levelzero.describe import ALIGNMENT, LevelZeroGpu
from bitnet_levelzero.memory import GRANULE, Context, LevelZeroBuffer, allocated
from bitnet_levelzero.recording import LevelZeroKernel, QueuedDevice
from bitnet_levelzero.sysman import free_memory, sensors
from bitnet_levelzero.tuning import TUNINGS, candidate_tunings, program_name

SLOTS = 3
"""Slots of page-locked memory, the last one for downloads."""
SLOT = 4 << 20
"""Bytes of a slot."""
_HOST_VISIBLE = 1  # ze_event_pool_flag_t
_KERNEL_TIMESTAMP = 4


class LevelZeroDevice(TuningMixin, QueuedDevice):
    """A Level Zero device. It can only run tunings for which the wheel has programs."""

    select_tuning = staticmethod(TUNINGS.tune)
    candidate_tunings = staticmethod(candidate_tunings)

    def __init__(self, found: LevelZeroGpu) -> None:
        super().__init__(found.info, Context(found.driver, found.device, found.ordinal))
        self._found = found
        host = [allocated(self._context, SLOT, MemoryKind.HOST) for _ in range(SLOTS)]
        slots = [LevelZeroBuffer(address, SLOT, MemoryKind.HOST) for address in host]
        self._stage(slots, [host_view(address, SLOT) for address in host])
        self._compiler = Compiler(self._context, (found.info.name, found.info.driver))

    def free_memory(self) -> int:
        """Return the free bytes that sysman reports, -1 if it is not available."""
        return free_memory(self._found)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> LevelZeroBuffer:
        try:
            address = allocated(self._context, nbytes, kind)
        except OutOfMemoryError as error:
            error.free = self.free_memory()
            raise
        zero = load().ffi.new("uint32_t *")
        size = words_of(nbytes, GRANULE)
        self._append(self._commands(), "MemoryFill", address, zero, 4, size)
        return LevelZeroBuffer(address, nbytes, kind)

    def _wrap(self, host: memoryview) -> LevelZeroBuffer | None:
        """Use host memory in place if kernels can read any memory of the host, else return None."""
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
        destination = target.address + target_at
        origin = source.address + source_at
        self._append(self._commands(), "MemoryCopy", destination, origin, nbytes)

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> LevelZeroKernel:
        module, handle = self._compiler.kernel(program_name(spec, constants, tuning), tuning.private["GROUP"])
        return LevelZeroKernel(spec, MappingProxyType(dict(constants)), tuning, module, handle)

    def _release(self, kernel: LevelZeroKernel) -> None:
        self._wait()
        self._context.destroy("Kernel", kernel.handle)
        self._context.destroy("Module", kernel.module)

    def _sensors(self) -> dict[str, float]:
        return sensors(self._found)

    def _kernel_resources(self, kernel: LevelZeroKernel) -> dict[str, float]:
        about = given("zeKernelGetProperties", kernel.handle)
        return {
            "private_bytes": about["privateMemSize"] + about["spillMemSize"],
            "shared_bytes": about["localMemSize"],
            "subgroup": about["requiredSubgroupSize"] or about["maxSubgroupSize"],
        }

    def _timings(self, recording: LaunchRecording[LevelZeroBuffer, LevelZeroKernel]) -> list[float]:
        """Time each launch by the device's clock, with an event per launch."""
        context = self._context
        count = len(recording.launches)
        description = {"flags": _HOST_VISIBLE | _KERNEL_TIMESTAMP, "count": count}
        pool = context.create("EventPool", context.handle, description, 0, self._null)
        events = [context.create("Event", pool, {"index": index, "signal": 1}) for index in range(count)]
        self._wait()
        for launch, event in zip(recording.launches, events, strict=True):
            self._launch(self._commands(), launch, event)
        self._wait()
        seconds = [self._seconds(event) for event in events]
        for event in events:
            context.destroy("Event", event)
        context.destroy("EventPool", pool)
        return seconds

    def _seconds(self, event: Handle) -> float:
        times = given("zeEventQueryKernelTimestamp", event)["global"]
        ticks = (times["kernelEnd"] - times["kernelStart"]) % (1 << int(self.info.extra["tick_bits"]))
        return float(ticks * int(self.info.extra["tick_ns"]) * 1e-9)

    def _close(self) -> None:
        with suppress(GpuError):  # a lost device has nothing left to free
            for slot in self._slots:
                call("zeMemFree", self._context.handle, slot.address)
            self._context.close()
