"""The Vulkan device: the HAL over one logical device and one compute queue."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from bitnet_core.hal import DeviceType, MemoryKind, TransferMode, Tuning
from bitnet_core.hal.base import TIMEOUT_VARIABLE, BaseDevice, Launch, Recorded
from bitnet_core.hal.staging import StagingRing
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan import tuning
from bitnet_vulkan.compile import Pipelines, VulkanKernel
from bitnet_vulkan.describe import PhysicalDevice, picked
from bitnet_vulkan.driver import WHOLE_SIZE, Handle, Instance, ffi, lib, make
from bitnet_vulkan.errors import Stage, check
from bitnet_vulkan.memory import Allocator, VulkanBuffer
from bitnet_vulkan.recording import COMPUTE, MANY_TIMES, TRANSFER, Commands, Queue, timed

SLOTS, SLOT = 4, 8 << 20
"""Staging slots and their bytes: large enough to keep the bus busy, small beside any model."""
LARGE = 1 << 20
"""Bytes of a copy that is worth a submission."""
SOFTWARE_TIMEOUT = 60.0
"""Seconds for a wait on a software device, which compiles a kernel when it first runs."""


class Uploads:
    """Copies of staging slots; see bitnet_core.hal.staging."""

    def __init__(self, slots: Sequence[VulkanBuffer], queue: Queue) -> None:
        self._slots, self._queue = slots, queue
        self.wait = queue.wait

    def copy(self, slot: int, start: int, nbytes: int, buffer: VulkanBuffer, offset: int) -> None:
        """A large one begins at once."""
        self._queue.commands().copy(self._slots[slot], start, buffer, offset, nbytes)
        if nbytes >= LARGE:
            self._queue.flush()

    def fence(self) -> int:
        """How many submissions there are by now."""
        self._queue.flush()
        return self._queue.submitted


class VulkanDevice(BaseDevice[VulkanBuffer, VulkanKernel]):
    """One logical device."""

    def __init__(self, index: int) -> None:
        self._instance = Instance()
        try:
            self._physical = physical = picked(self._instance, index)
            super().__init__(physical.info)
            self._handle = _logical_device(physical)
        except Exception:
            self._instance.close()
            raise
        if physical.info.type is DeviceType.SOFTWARE and not os.environ.get(TIMEOUT_VARIABLE):
            self.timeout = SOFTWARE_TIMEOUT
        self._queue = Queue(self._handle, physical, lambda: self.timeout)
        self._allocator, self._pipelines = Allocator(self._handle, physical), Pipelines(self._handle, physical)
        self._slots = [self._allocator.allocate(SLOT, MemoryKind.HOST) for _ in range(SLOTS + 1)]  # the last: downloads
        self._bytes = [self._allocator.map(slot) for slot in self._slots]
        self._staging = StagingRing(self._bytes[:SLOTS], Uploads(self._slots, self._queue))

    def free_memory(self) -> int:
        """Bytes of device-local memory left."""
        return self._allocator.free_bytes()

    def held_bytes(self) -> int:
        """Bytes of staging, where host and device share memory."""
        return (SLOTS + 1) * SLOT if self.info.transfer is TransferMode.UNIFIED else 0

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See tuning.py."""
        return tuning.choose(self._physical, spec, constants, params)

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> list[Tuning]:
        """See bitnet_core.hal.device.TunableDevice."""
        return tuning.offered(self._physical, spec, constants, params)

    def _alloc(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        buffer = self._allocator.allocate(nbytes, kind)
        commands = self._queue.commands()
        commands.follow(TRANSFER)
        lib().vkCmdFillBuffer(commands.handle, buffer.handle, 0, WHOLE_SIZE, 0)
        return buffer

    def _wrap(self, host: memoryview) -> VulkanBuffer | None:
        return self._allocator.import_host(host) if self.info.transfer is TransferMode.UNIFIED else None

    def _free(self, buffer: VulkanBuffer) -> None:
        self._settle()
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

    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> VulkanKernel:
        return self._pipelines.build(spec, constants, tuning)

    def _release(self, kernel: VulkanKernel) -> None:
        self._wait()
        self._pipelines.release(kernel)

    def _run(self, launch: Launch[VulkanBuffer, VulkanKernel]) -> None:
        commands = self._queue.commands()
        commands.follow(COMPUTE)
        commands.put(launch)

    def _record(self, recording: Recorded[VulkanBuffer, VulkanKernel]) -> None:
        """A command buffer that each replay submits again."""
        commands = self._queue.begin(MANY_TIMES)
        for launch in recording.launches:
            commands.follow(COMPUTE)
            commands.put(launch)
        self._queue.end(commands)
        recording.native = commands, commands.submit_info()

    def _replay(self, recording: Recorded[VulkanBuffer, VulkanKernel]) -> None:
        self._queue.submit(recording.native[1])

    def _forget(self, recording: Recorded[VulkanBuffer, VulkanKernel]) -> None:
        self._settle()
        commands: Commands = recording.native[0]
        self._queue.give_back(commands)

    def _timings(self, recording: Recorded[VulkanBuffer, VulkanKernel]) -> Sequence[float]:
        return timed(self._handle, self._physical, self._queue, recording.launches)

    def _wait(self) -> None:
        self._queue.wait()
        self._staging.drained()

    def _settle(self) -> None:
        """Nothing is under way afterwards, also where waiting gave up and the device is being closed."""
        if self._closed:
            lib().vkDeviceWaitIdle(self._handle)
        else:
            self._wait()

    def _close(self) -> None:
        lib().vkDeviceWaitIdle(self._handle)
        for view, slot in zip(self._bytes, self._slots, strict=True):
            view.release()
            self._allocator.release(slot)
        self._pipelines.close()
        self._queue.close()
        lib().vkDestroyDevice(self._handle, ffi().NULL)
        self._instance.close()


def _logical_device(physical: PhysicalDevice) -> Handle:
    chain, extensions = physical.asked()
    priorities = ffi().new("float[]", [1.0])
    queue = make(
        "VkDeviceQueueCreateInfo",
        queueFamilyIndex=physical.queue_family,
        queueCount=1,
        pQueuePriorities=priorities,
    )
    wanted = {"queueCreateInfoCount": 1, "pQueueCreateInfos": queue}
    names = {"enabledExtensionCount": len(extensions), "ppEnabledExtensionNames": extensions}
    create, handle = make("VkDeviceCreateInfo", pNext=chain, **wanted, **names), ffi().new("VkDevice *")
    status = lib().vkCreateDevice(physical.handle, create, ffi().NULL, handle)
    check(status, Stage.DEVICE, physical.info.name)
    return handle[0]
