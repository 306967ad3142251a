"""The Vulkan device: the HAL over one logical device and one compute queue."""

from __future__ import annotations

from contextlib import ExitStack

from bitnet_core.hal import MemoryKind, TransferMode, Tuning
from bitnet_core.hal.found import Handled
from bitnet_core.hal.wanted import Constants, Tuned
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan import tuning
from bitnet_vulkan.compile import Pipelines, VulkanKernel
from bitnet_vulkan.describe import logical
from bitnet_vulkan.driver import vk
from bitnet_vulkan.memory import Allocator, VulkanBuffer
from bitnet_vulkan.recording import TRANSFER, QueuedDevice

WHOLE_SIZE = 0xFFFFFFFFFFFFFFFF
SLOTS, SLOT = 5, 8 << 20
"""Staging slots, one of them for downloads, and their bytes: enough to keep the bus busy, small beside any model."""


class VulkanDevice(Tuned, QueuedDevice):
    """One logical device."""

    choose, offered = staticmethod(tuning.choose), staticmethod(tuning.offered)

    def __init__(self, physical: Handled) -> None:
        with ExitStack() as opened:
            device = logical(physical)
            opened.callback(device.close)
            super().__init__(physical.info, device)
            with self._entered("open"):
                self._allocator, self._pipelines = Allocator(device, physical), Pipelines(device, physical.info)
                opened.callback(self._pipelines.store)
                slots = [self._allocator.allocate(SLOT, MemoryKind.HOST) for _ in range(SLOTS)]
                self._stage(slots, [self._allocator.map(slot) for slot in slots])
            self._opened = opened.pop_all()

    def free_memory(self) -> int:
        """Bytes of device-local memory left."""
        return self._allocator.free_bytes()

    def _alloc(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        buffer = self._allocator.allocate(nbytes, kind)
        vk().lib.vkCmdFillBuffer(self._commands().follow(TRANSFER), buffer.handle, 0, WHOLE_SIZE, 0)
        return buffer

    def _wrap(self, host: memoryview) -> VulkanBuffer | None:
        return self._allocator.import_host(host) if self.info.transfer is TransferMode.UNIFIED else None

    def _free(self, buffer: VulkanBuffer) -> None:
        if not self._closed:  # else it goes with the device, also where waiting gave up
            self._wait()
            self._allocator.release(buffer)

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> VulkanKernel:
        return self._pipelines.build(spec, constants, tuning)

    def _release(self, kernel: VulkanKernel) -> None:
        self._wait()
        self._device.destroy("Pipeline", kernel.pipeline)

    def _close(self) -> None:
        for view in self._views:
            view.release()
        self._opened.close()
