"""Command buffers, whose commands run one after the other, and the queue that they go to, with bounded waiting."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from struct import pack

from bitnet_core.hal import DeviceInfo
from bitnet_core.hal.base import Launch, Recorded
from bitnet_core.hal.c_library import Handle
from bitnet_core.hal.command_lists import CommandListDevice
from bitnet_core.hal.words import words_of

from bitnet_vulkan.compile import VulkanKernel
from bitnet_vulkan.describe import COMPUTE_STAGE
from bitnet_vulkan.driver import Logical, function, vk
from bitnet_vulkan.errors import TIMEOUT, check
from bitnet_vulkan.memory import VulkanBuffer

VulkanLaunch = Launch[VulkanBuffer, VulkanKernel]
ONCE, MANY_TIMES = 1, 4
"""VkCommandBufferUsageFlagBits: ONE_TIME_SUBMIT, SIMULTANEOUS_USE."""
COMPUTE, TRANSFER, HOST = 0x800, 0x1000, 0x4000
_TOP, _BOTTOM = 0x1, 0x2000
_ACCESS = {COMPUTE: 0x60, TRANSFER: 0x1800, COMPUTE | TRANSFER: 0x1860, HOST: 0x2000}
"""VkPipelineStageFlagBits, and the VkAccessFlagBits of what they read and write."""
COMPUTE_PIPELINE, _64_BITS = 1, 1


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer. info: a VkSubmitInfo; last: the stage of its last command, at first any.

    Each command waits for the one before it: in a plan nearly every launch reads what the last one wrote, so asking
    which do would save nothing.
    """

    handle: Handle
    info: Handle
    last: int = COMPUTE | TRANSFER

    def follow(self, stage: int) -> Handle:
        """What was done so far is finished, and visible to the next command, which is of this stage."""
        memory, null = _barrier(self.last, stage), vk().null
        vk().lib.vkCmdPipelineBarrier(self.handle, self.last, stage, 0, 1, memory, 0, null, 0, null)
        self.last = stage
        return self.handle


@cache
def _barrier(before: int, after: int) -> Handle:
    return vk().make("VkMemoryBarrier", srcAccessMask=_ACCESS[before], dstAccessMask=_ACCESS[after])


class QueuedDevice(CommandListDevice[VulkanBuffer, VulkanKernel, Commands]):
    """What a device does with its queue. A recording is a command buffer, which each replay submits again."""

    batch = 16

    def __init__(self, info: DeviceInfo, device: Logical) -> None:
        super().__init__(info)
        self._device, family = device, info.extra["queue_family"]
        self._queue = vk().given("vkGetDeviceQueue", "open", device.handle, family, 0)
        self._pool = device.create("CommandPool", "record", queueFamilyIndex=family)
        self._push = function("vkCmdPushDescriptorSetWithTemplateKHR")

    def _new_list(self) -> Commands:
        wanted = {"commandPool": self._pool}
        handle = vk().given("vkAllocateCommandBuffers", "record", self._device.handle, wanted)
        return Commands(handle, vk().make("VkSubmitInfo", pCommandBuffers=[handle]))

    def _open_list(self, commands: Commands, *, again: bool) -> None:
        commands.last = COMPUTE | TRANSFER
        vk().call("vkBeginCommandBuffer", "record", commands.handle, {"flags": MANY_TIMES if again else ONCE})

    def _close_list(self, commands: Commands) -> None:
        vk().call("vkEndCommandBuffer", "record", commands.follow(HOST))

    def _new_fence(self) -> Handle:
        return self._device.create("Fence", "submit")

    def _execute(self, commands: Commands, fence: Handle) -> None:
        check(vk().lib.vkQueueSubmit(self._queue, 1, commands.info, fence), "submit")

    def _pass(self, fence: Handle) -> None:
        """A timeout asks the device: DeviceLostError if it is gone, GpuTimeoutError if it still answers."""
        lib, where = vk().lib, (self._device.handle, 1, [fence])
        status = lib.vkWaitForFences(*where, 1, int(self.timeout * 1e9))
        if status == TIMEOUT:
            status = min(lib.vkGetFenceStatus(self._device.handle, fence), 0) or TIMEOUT
        check(status or lib.vkResetFences(*where), "wait")

    def _copy(self, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int) -> None:
        commands, region = self._commands().follow(TRANSFER), [(source_at, target_at, nbytes)]
        vk().lib.vkCmdCopyBuffer(commands, source.handle, target.handle, 1, region)

    def _launch(self, commands: Commands, launch: VulkanLaunch) -> None:
        self._dispatch(commands.follow(COMPUTE), launch)

    def _dispatch(self, commands: Handle, launch: VulkanLaunch) -> None:
        lib, ffi, kernel, params = vk().lib, vk().ffi, launch.kernel, launch.params
        words: list[int] = []
        for buffer, offset, nbytes in launch.bound:  # VkDescriptorBufferInfo
            words += buffer.address, offset, words_of(nbytes)
        bound = ffi.from_buffer(pack(f"{len(words)}Q", *words))
        lib.vkCmdBindPipeline(commands, COMPUTE_PIPELINE, kernel.pipeline)
        self._push(commands, kernel.template, kernel.layout, 0, bound)
        lib.vkCmdPushConstants(commands, kernel.layout, COMPUTE_STAGE, 0, len(params), ffi.from_buffer(params))
        lib.vkCmdDispatch(commands, *launch.grid)

    def _timings(self, recording: Recorded[VulkanBuffer, VulkanKernel]) -> list[float]:
        """Where a wait gives up, the queries, which may still be written, live as long as the device."""
        count, lib = 2 * len(recording.launches), vk().lib
        if not count:
            return []
        pool = self._device.create("QueryPool", "record", queryCount=count)
        lib.vkCmdResetQueryPool(self._commands().follow(COMPUTE), pool, 0, count)
        for i, launch in enumerate(recording.launches):
            commands = self._commands().follow(COMPUTE)
            lib.vkCmdWriteTimestamp(commands, _TOP, pool, 2 * i)
            self._dispatch(commands, launch)
            lib.vkCmdWriteTimestamp(commands, _BOTTOM, pool, 2 * i + 1)
        self._wait()
        ticks, tick = vk().ffi.new("uint64_t[]", count), 1e-9 * float(self.info.extra["tick_ns"])
        where = self._device.handle, pool, 0, count
        vk().call("vkGetQueryPoolResults", "wait", *where, 8 * count, ticks, 8, _64_BITS)
        self._device.destroy("QueryPool", pool)
        return [tick * max(1, ticks[i + 1] - ticks[i]) for i in range(0, count, 2)]
