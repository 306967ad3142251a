"""The Vulkan device: the HAL over one logical device and one compute queue."""

from __future__ import annotations

import os
from contextlib import ExitStack

from bitnet_core.hal import DeviceType, MemoryKind, TransferMode, Tuning
from bitnet_core.hal.base import TIMEOUT_VARIABLE, BaseDevice
from bitnet_core.hal.found import numbered
from bitnet_core.hal.staging import StagingRing
from bitnet_core.hal.wanted import Constants, Params, Wanted
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan import tuning
from bitnet_vulkan.compile import Pipelines, VulkanKernel
from bitnet_vulkan.describe import logical, usable
from bitnet_vulkan.driver import instance
from bitnet_vulkan.errors import BACKEND
from bitnet_vulkan.memory import Allocator, VulkanBuffer
from bitnet_vulkan.recording import MANY_TIMES, Queue, VulkanLaunch, VulkanRecorded

SLOTS, SLOT = 4, 8 << 20
"""Staging slots and their bytes: large enough to keep the bus busy, small beside any model."""
SOFTWARE_TIMEOUT = 60.0
"""Seconds for a wait on a software device, which compiles a kernel when it first runs."""


class VulkanDevice(BaseDevice[VulkanBuffer, VulkanKernel]):
    """One logical device."""

    def __init__(self, index: int) -> None:
        with ExitStack() as opened:
            physical = numbered(usable(opened.enter_context(instance())), index, BACKEND)
            super().__init__(info := physical.info)
            if info.type is DeviceType.SOFTWARE and not os.environ.get(TIMEOUT_VARIABLE):
                self.timeout = SOFTWARE_TIMEOUT
            device = logical(physical)
            opened.callback(device.close)
            self._device, self._allocator, self._pipelines = (
                device,
                Allocator(device, physical),
                Pipelines(device, info),
            )
            opened.callback(self._pipelines.store)
            slots = [self._allocator.allocate(SLOT, MemoryKind.HOST) for _ in range(SLOTS + 1)]  # the last: downloads
            self._slots, self._bytes = slots, [self._allocator.map(slot) for slot in slots]
            self._queue = Queue(device, int(info.extra["queue_family"]), lambda: self.timeout, slots)
            self._staging = StagingRing(self._bytes[:SLOTS], self._queue)
            self._opened = opened.pop_all()

    def free_memory(self) -> int:
        """Bytes of device-local memory left."""
        return self._allocator.free_bytes()

    def held_bytes(self) -> int:
        """Bytes of staging, where host and device share memory."""
        return (SLOTS + 1) * SLOT if self.info.transfer is TransferMode.UNIFIED else 0

    def tuning(self, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
        """See tuning.py."""
        return tuning.choose(Wanted(spec, constants, params, self.info))

    def tunings(self, spec: KernelSpec, constants: Constants, params: Params) -> list[Tuning]:
        """See bitnet_core.hal.device.TunableDevice."""
        return tuning.offered(Wanted(spec, constants, params, self.info))

    def _alloc(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        buffer = self._allocator.allocate(nbytes, kind)
        self._queue.commands().zero(buffer)
        return buffer

    def _wrap(self, host: memoryview) -> VulkanBuffer | None:
        return self._allocator.import_host(host) if self.info.transfer is TransferMode.UNIFIED else None

    def _free(self, buffer: VulkanBuffer) -> None:
        self._wait()
        self._allocator.release(buffer)

    def _upload(self, buffer: VulkanBuffer, offset: int, source: memoryview) -> None:
        self._staging.upload(buffer, offset, source)

    def _download(self, buffer: VulkanBuffer, offset: int, target: memoryview) -> None:
        for start in range(0, len(target), SLOT):
            size = min(SLOT, len(target) - start)
            self._copy(buffer, offset + start, self._slots[-1], 0, size)
            self._wait()
            target[start : start + size] = self._bytes[-1][:size]

    def _copy(self, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int) -> None:
        self._queue.commands().copy(source, source_at, target, target_at, nbytes)

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> VulkanKernel:
        return self._pipelines.build(spec, constants, tuning)

    def _release(self, kernel: VulkanKernel) -> None:
        self._wait()
        self._device.destroy("Pipeline", kernel.pipeline)

    def _run(self, launch: VulkanLaunch) -> None:
        self._queue.commands().launch(launch)

    def _record(self, recording: VulkanRecorded) -> None:
        """A command buffer that each replay submits again."""
        recording.native = commands = self._queue.begin(MANY_TIMES)
        for launch in recording.launches:
            commands.launch(launch)
        self._queue.end(commands)

    def _replay(self, recording: VulkanRecorded) -> None:
        self._queue.submit(recording.native)

    def _forget(self, recording: VulkanRecorded) -> None:
        self._wait()
        self._queue.spare.append(recording.native)

    def _timings(self, recording: VulkanRecorded) -> list[float]:
        tick = 1e-9 * float(self.info.extra["tick_ns"])
        return [tick * ticks for ticks in self._queue.timed(recording.launches)] if recording.launches else []

    def _wait(self) -> None:
        self._queue.wait()
        self._staging.drained()

    def _close(self) -> None:
        for view in self._bytes:
            view.release()
        self._opened.close()
