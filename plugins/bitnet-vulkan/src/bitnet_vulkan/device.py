"""The Vulkan device: the HAL over one logical device and one compute queue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from bitnet_hal.families.joined_rotations import COUNTER_BYTES, RotationJoiner
from bitnet_hal.plugin import (
    BoundLaunch,
    Constants,
    EnumeratedDevice,
    Handle,
    KernelSpec,
    LaunchRecording,
    MemoryKind,
    Tuning,
    TuningMixin,
)

from bitnet_vulkan import tuning
from bitnet_vulkan.compile import Pipelines
from bitnet_vulkan.driver import TIMEOUT, check, vk
from bitnet_vulkan.memory import SLOT, SLOTS, MemoryDevice
from bitnet_vulkan.recording import ANY, HOST, TRANSFER, Commands, VulkanBuffer, VulkanKernel

ONE_TIME_SUBMIT = 1  # VkCommandBufferUsageFlagBits
SIMULTANEOUS_USE = 4
QUERY_RESULT_64 = 1  # VkQueryResultFlagBits


class VulkanDevice(TuningMixin, MemoryDevice):
    """A Vulkan device with one compute queue. A recording is a command buffer that each replay submits again."""

    batch = 16
    select_tuning = staticmethod(tuning.select_tuning)
    candidate_tunings = staticmethod(tuning.candidate_tunings)

    def __init__(self, physical: EnumeratedDevice) -> None:
        super().__init__(physical)
        device = self._device
        family = self.info.extra["queue_family"]
        with self._entered("open"), ExitStack() as undo:
            undo.callback(device.close)
            self._queue = vk().given("vkGetDeviceQueue", "open", device.handle, family, 0)
            self._pool = device.create("CommandPool", {"queueFamilyIndex": family}, operation="record")
            self._pipelines = Pipelines(device, self.info)
            slots = [self._new(SLOT, MemoryKind.HOST) for _ in range(SLOTS)]
            mapped = [vk().given("vkMapMemory", "alloc", device.handle, slot.memory, 0, SLOT, 0) for slot in slots]
            self._stage(slots, [memoryview(vk().ffi.buffer(pointer, SLOT)).cast("B") for pointer in mapped])
            undo.pop_all()
        self._joiner = RotationJoiner(self._compile, lambda: self._alloc(COUNTER_BYTES, MemoryKind.DEVICE), ["DIM"])

    def _submitted_launches(
        self, launches: Sequence[BoundLaunch[VulkanBuffer, VulkanKernel]]
    ) -> Sequence[BoundLaunch[VulkanBuffer, VulkanKernel]]:
        return self._joiner.joined(launches, int(self.info.extra["resident"]))

    def _copy(self, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int) -> None:
        commands = self._commands().follow(TRANSFER)
        region = [(source_at, target_at, nbytes)]
        vk().lib.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, region)

    def _compile(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> VulkanKernel:
        return self._pipelines.build(spec, constants, tuning)

    def _release(self, kernel: VulkanKernel) -> None:
        self._wait()
        self._device.destroy("Pipeline", kernel.pipeline)

    def _new_list(self) -> Commands:
        allocate_info = {"commandPool": self._pool}
        handle = vk().given("vkAllocateCommandBuffers", "record", self._device.handle, allocate_info)
        return Commands(handle, vk().make("VkSubmitInfo", pCommandBuffers=[handle]))

    def _open_list(self, commands: Commands, *, again: bool) -> None:
        commands.last = ANY
        usage = SIMULTANEOUS_USE if again else ONE_TIME_SUBMIT
        vk().call("vkBeginCommandBuffer", "record", commands.handle, {"flags": usage})

    def _close_list(self, commands: Commands) -> None:
        vk().call("vkEndCommandBuffer", "record", commands.follow(HOST))

    def _launch(self, commands: Commands, launch: BoundLaunch[VulkanBuffer, VulkanKernel]) -> None:
        commands.launch(launch)

    def _new_fence(self) -> Handle:
        return self._device.create("Fence", {}, operation="submit")

    def _execute(self, commands: Commands, fence: Handle) -> None:
        check(vk().lib.vkQueueSubmit(self._queue, 1, commands.info, fence), "submit")

    def _pass(self, fence: Handle) -> None:
        """Wait for a fence and reset it.

        After a timeout, raises DeviceLostError if the device is lost and GpuTimeoutError if it still responds.
        """
        lib = vk().lib
        fences = (self._device.handle, 1, [fence])
        status = lib.vkWaitForFences(*fences, 1, int(self.timeout * 1e9))
        if status == TIMEOUT:
            fence_status = lib.vkGetFenceStatus(self._device.handle, fence)  # negative: an error, 1: not signalled yet
            status = fence_status if fence_status < 0 else TIMEOUT
        check(status or lib.vkResetFences(*fences), "wait")

    def _timings(self, recording: LaunchRecording[VulkanBuffer, VulkanKernel]) -> list[float]:
        """Time each launch with timestamp queries.

        After a timeout the queries may still be written, so they live as long as the device.
        """
        count = 2 * len(recording.launches)
        pool = self._device.create("QueryPool", {"queryCount": count}, operation="record")
        vk().lib.vkCmdResetQueryPool(self._commands().follow(TRANSFER), pool, 0, count)
        for i, launch in enumerate(recording.launches):
            self._commands().launch(launch, pool, 2 * i)
        self._wait()
        ticks = vk().ffi.new("uint64_t[]", count)
        results = (pool, 0, count, 8 * count, ticks, 8, QUERY_RESULT_64)
        vk().call("vkGetQueryPoolResults", "wait", self._device.handle, *results)
        self._device.destroy("QueryPool", pool)
        seconds_per_tick = 1e-9 * float(self.info.extra["tick_ns"])
        return [seconds_per_tick * max(1, ticks[i + 1] - ticks[i]) for i in range(0, count, 2)]

    def _close(self) -> None:
        try:
            self._pipelines.store()
        finally:
            self._device.close()
