"""Command buffers, whose commands run one after the other, and the queue that they go to, with bounded waiting."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from struct import pack

from bitnet_core.hal import DeviceInfo
from bitnet_core.hal.base import Launch, Recorded
from bitnet_core.hal.staged import StagedDevice
from bitnet_core.hal.words import words_of

from bitnet_vulkan.compile import COMPUTE_PIPELINE, COMPUTE_STAGE, VulkanKernel
from bitnet_vulkan.driver import Handle, Logical, call, ffi, function, lib, make
from bitnet_vulkan.errors import TIMEOUT, check
from bitnet_vulkan.memory import VulkanBuffer

VulkanLaunch = Launch[VulkanBuffer, VulkanKernel]
VulkanRecorded = Recorded[VulkanBuffer, VulkanKernel]
BATCH, MOST_PENDING = 16, 64
"""Commands in one submission: the GPU starts while Python still records the rest, and no submission runs for long.
Submissions under way, of which the first is waited for before there is another."""
LARGE = 1 << 20
"""Bytes of a copy that is worth a submission."""
ONCE, MANY_TIMES = 1, 4
"""VkCommandBufferUsageFlagBits: ONE_TIME_SUBMIT, SIMULTANEOUS_USE."""
COMPUTE, TRANSFER, HOST = 0x800, 0x1000, 0x4000
_TOP, _BOTTOM = 0x1, 0x2000
_ACCESS = {COMPUTE: 0x60, TRANSFER: 0x1800, COMPUTE | TRANSFER: 0x1860, HOST: 0x2000}
"""VkPipelineStageFlagBits, and the VkAccessFlagBits of what they read and write."""
_64_BITS = 1


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer. info: a VkSubmitInfo; last: the stage of its last command, at first any.

    Each command waits for the one before it: in a plan nearly every launch reads what the last one wrote, so asking
    which do would save nothing.
    """

    handle: Handle
    info: Handle
    usage: int = ONCE
    count: int = 0
    last: int = COMPUTE | TRANSFER

    def follow(self, stage: int) -> Handle:
        """What was done so far is finished, and visible to the next command, which is of this stage."""
        memory, null = _barrier(self.last, stage), ffi().NULL
        lib().vkCmdPipelineBarrier(self.handle, self.last, stage, 0, 1, memory, 0, null, 0, null)
        self.last = stage
        return self.handle


@cache
def _barrier(before: int, after: int) -> Handle:
    return make("VkMemoryBarrier", srcAccessMask=_ACCESS[before], dstAccessMask=_ACCESS[after])


class QueuedDevice(StagedDevice[VulkanBuffer, VulkanKernel]):
    """What a device does with its queue. A recording is a command buffer, which each replay submits again; nothing is
    created per submission once the pools have grown."""

    def __init__(self, info: DeviceInfo, device: Logical) -> None:
        super().__init__(info)
        self._device, family, queue = device, int(info.extra["queue_family"]), ffi().new("VkQueue *")
        lib().vkGetDeviceQueue(device.handle, family, 0, queue)
        self._queue = queue[0]
        self._pool = device.create("CommandPool", "record", queueFamilyIndex=family)
        self._push = function("vkCmdPushDescriptorSetWithTemplateKHR", device.handle)
        self._submitted = 0
        self._open: Commands | None = None
        self._spare: list[Commands] = []
        self._fences: list[Handle] = []
        self._pending: deque[tuple[Handle, Commands]] = deque()

    def _begin(self, usage: int) -> Commands:
        """Open a command buffer, whose first command waits for all that was submitted before."""
        if not self._spare:
            handle = ffi().new("VkCommandBuffer *")
            info = make("VkCommandBufferAllocateInfo", commandPool=self._pool)
            call("vkAllocateCommandBuffers", "record", self._device.handle, info, handle)
            self._spare.append(Commands(handle[0], make("VkSubmitInfo", pCommandBuffers=[handle[0]])))
        self._open = opened = replace(self._spare.pop(), usage=usage, count=0, last=COMPUTE | TRANSFER)
        call("vkBeginCommandBuffer", "record", opened.handle, make("VkCommandBufferBeginInfo", flags=usage))
        return opened

    def _command(self, stage: int) -> Handle:
        """The open command buffer, for a command of this stage; what is in it runs at the next `flush`."""
        if self._open is not None and self._open.usage == ONCE and self._open.count >= BATCH:
            self.flush()
        commands = self._open or self._begin(ONCE)
        commands.count += 1
        return commands.follow(stage)

    def _end(self, commands: Commands) -> Commands:
        """Close what is open; what it wrote becomes visible to the host, once the fence is signalled."""
        self._open = None
        call("vkEndCommandBuffer", "record", commands.follow(HOST))
        return commands

    def flush(self) -> None:
        """Submit what is open."""
        if self._open is not None:
            self._submit(self._end(self._open))

    def _submit(self, commands: Commands) -> None:
        """One-time commands are spare when they are done."""
        if len(self._pending) >= MOST_PENDING:
            self._reach(self._submitted - MOST_PENDING + 1)
        fence = self._fences.pop() if self._fences else self._device.create("Fence", "submit")
        call("vkQueueSubmit", "submit", self._queue, 1, commands.info, fence)
        self._pending.append((fence, commands))
        self._submitted += 1

    def _fence(self) -> int:
        """How many submissions there are, with what is open."""
        self.flush()
        return self._submitted

    def _reach(self, fence: int) -> None:
        """The first `fence` submissions in turn, each for a bounded time.

        A timeout asks the device: DeviceLostError if it is gone, GpuTimeoutError if it still answers.
        """
        device = self._device.handle
        while self._submitted - len(self._pending) < fence:
            first, commands = self._pending[0]
            fences = ffi().new("VkFence[]", [first])
            status = lib().vkWaitForFences(device, 1, fences, 1, int(self.timeout * 1e9))
            if status == TIMEOUT:
                status = min(lib().vkGetFenceStatus(device, first), 0) or TIMEOUT
            check(status, "wait")
            call("vkResetFences", "wait", device, 1, fences)
            self._pending.popleft()
            self._fences.append(first)
            self._spare += [commands] if commands.usage == ONCE else []

    def _wait(self) -> None:
        self._reach(self._fence())
        self._ring.drained()

    def _copy(self, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int) -> None:
        region = ffi().new("VkBufferCopy *", (source_at, target_at, nbytes))
        lib().vkCmdCopyBuffer(self._command(TRANSFER), source.handle, target.handle, 1, region)
        if nbytes >= LARGE:
            self.flush()

    def _run(self, launch: VulkanLaunch) -> None:
        self._dispatch(self._command(COMPUTE), launch)

    def _dispatch(self, commands: Handle, launch: VulkanLaunch) -> None:
        vk, kernel, params = lib(), launch.kernel, launch.params
        words: list[int] = []
        for buffer, offset, nbytes in launch.bound:  # VkDescriptorBufferInfo
            words += buffer.address, offset, words_of(nbytes)
        bound = ffi().from_buffer(pack(f"{len(words)}Q", *words))
        vk.vkCmdBindPipeline(commands, COMPUTE_PIPELINE, kernel.pipeline)
        self._push(commands, kernel.template, kernel.layout, 0, bound)
        vk.vkCmdPushConstants(commands, kernel.layout, COMPUTE_STAGE, 0, len(params), ffi().from_buffer(params))
        vk.vkCmdDispatch(commands, *launch.grid)

    def _record(self, recording: VulkanRecorded) -> None:
        self.flush()
        commands = self._begin(MANY_TIMES)
        for launch in recording.launches:
            self._run(launch)
        recording.native = self._end(commands)

    def _replay(self, recording: VulkanRecorded) -> None:
        self.flush()
        self._submit(recording.native)

    def _forget(self, recording: VulkanRecorded) -> None:
        if not self._closed:
            self._wait()
            self._spare.append(recording.native)

    def _timings(self, recording: VulkanRecorded) -> list[float]:
        """Where a wait gives up, the queries, which may still be written, live as long as the device."""
        count, vk = 2 * len(recording.launches), lib()
        if not count:
            return []
        pool = self._device.create("QueryPool", "record", queryCount=count)
        vk.vkCmdResetQueryPool(self._command(COMPUTE), pool, 0, count)
        for i, launch in enumerate(recording.launches):
            commands = self._command(COMPUTE)
            vk.vkCmdWriteTimestamp(commands, _TOP, pool, 2 * i)
            self._dispatch(commands, launch)
            vk.vkCmdWriteTimestamp(commands, _BOTTOM, pool, 2 * i + 1)
        self._wait()
        ticks, tick = ffi().new("uint64_t[]", count), 1e-9 * float(self.info.extra["tick_ns"])
        where = self._device.handle, pool, 0, count
        call("vkGetQueryPoolResults", "wait", *where, 8 * count, ticks, 8, _64_BITS)
        self._device.destroy("QueryPool", pool)
        return [tick * max(1, ticks[i + 1] - ticks[i]) for i in range(0, count, 2)]
