"""Command buffers, whose commands run one after the other, and the queue that they go to, with bounded waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import pack

from bitnet_core.hal.base import Launch, Recorded
from bitnet_core.hal.words import words_of

from bitnet_vulkan.compile import COMPUTE_PIPELINE, COMPUTE_STAGE, VulkanKernel
from bitnet_vulkan.driver import WHOLE_SIZE, Handle, Logical, ffi, lib, make
from bitnet_vulkan.errors import TIMEOUT
from bitnet_vulkan.memory import VulkanBuffer

VulkanLaunch = Launch[VulkanBuffer, VulkanKernel]
VulkanRecorded = Recorded[VulkanBuffer, VulkanKernel]
BATCH, MOST_PENDING = 16, 64
"""Commands in one submission: the GPU starts while Python still records the rest, and no submission runs for long.
Submissions under way, of which the first is waited for before there is another."""
LARGE = 1 << 20
"""Bytes of an upload that is worth a submission."""
ONCE, MANY_TIMES = 1, 4
"""VkCommandBufferUsageFlagBits: ONE_TIME_SUBMIT, SIMULTANEOUS_USE."""
COMPUTE, TRANSFER, HOST = 0x800, 0x1000, 0x4000
_TOP, _BOTTOM = 0x1, 0x2000
"""VkPipelineStageFlagBits."""
_READS = {COMPUTE: 0x20, TRANSFER: 0x800, HOST: 0x2000}
_WRITES = {COMPUTE: 0x40, TRANSFER: 0x1000}
"""VkAccessFlagBits of the stages."""
_64_BITS = 1


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer. Each command waits for the one before it: in a plan nearly every launch reads what the last one
    wrote, so that asking which do would save nothing. last: its stage, at first any. info: a VkSubmitInfo."""

    handle: Handle
    info: Handle
    usage: int = ONCE
    count: int = 0
    last: int = 0

    def begin(self, usage: int) -> int:
        """Make it empty; the status."""
        self.usage, self.count, self.last = usage, 0, COMPUTE | TRANSFER
        return int(lib().vkBeginCommandBuffer(self.handle, make("VkCommandBufferBeginInfo", flags=usage)))

    def follow(self, stage: int) -> None:
        """What was done so far is finished, and visible to the next command, which is of this stage."""
        memory, null = _barrier(self.last, stage), ffi().NULL
        lib().vkCmdPipelineBarrier(self.handle, self.last, stage, 0, 1, memory, 0, null, 0, null)
        self.last = stage

    def launch(self, launch: VulkanLaunch) -> None:
        """Record a launch."""
        self.follow(COMPUTE)
        self.put(launch)

    def put(self, launch: VulkanLaunch) -> None:
        """After `follow(COMPUTE)`."""
        vk, handle, layout, params = lib(), self.handle, launch.kernel.layout, launch.params
        words: list[int] = []
        for buffer, offset, nbytes in launch.bound:  # VkDescriptorBufferInfo
            words += buffer.address, offset, words_of(nbytes)
        bound = ffi().from_buffer(pack(f"{len(words)}Q", *words))
        vk.vkCmdBindPipeline(handle, COMPUTE_PIPELINE, launch.kernel.pipeline)
        layout.push(handle, layout.template, layout.handle, 0, bound)
        vk.vkCmdPushConstants(handle, layout.handle, COMPUTE_STAGE, 0, len(params), ffi().from_buffer(params))
        vk.vkCmdDispatch(handle, *launch.grid)

    def copy(self, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int) -> None:
        """Record a copy."""
        self.follow(TRANSFER)
        region = ffi().new("VkBufferCopy *", (source_at, target_at, nbytes))
        lib().vkCmdCopyBuffer(self.handle, source.handle, target.handle, 1, region)

    def zero(self, buffer: VulkanBuffer) -> None:
        """Fill all of a buffer."""
        self.follow(TRANSFER)
        lib().vkCmdFillBuffer(self.handle, buffer.handle, 0, WHOLE_SIZE, 0)


@cache
def _barrier(before: int, after: int) -> Handle:
    source = sum(access for stage, access in _WRITES.items() if stage & before)
    target = sum(access for stage, access in (*_READS.items(), *_WRITES.items()) if stage & after)
    return make("VkMemoryBarrier", srcAccessMask=source, dstAccessMask=target)


class Queue:
    """Submits in order; nothing is created per submission once the pools have grown. It copies uploads, too
    (bitnet_core.hal.staging.Copies).

    timeout: gives the seconds that one submission may take. slots: that uploads are copied from.
    """

    def __init__(
        self, device: Logical, family: int, timeout: Callable[[], float], slots: Sequence[VulkanBuffer]
    ) -> None:
        self._device, self._timeout, self._slots = device, timeout, slots
        queue = ffi().new("VkQueue *")
        lib().vkGetDeviceQueue(device.handle, family, 0, queue)
        self._queue = queue[0]
        self._pool = device.create("CommandPool", "record", queueFamilyIndex=family)
        self._submitted = 0
        self._open: Commands | None = None
        self.spare: list[Commands] = []
        self._fences: list[Handle] = []
        self._pending: deque[tuple[Handle, Commands]] = deque()

    def begin(self, usage: int) -> Commands:
        """A command buffer that has begun; its first command waits for all that was submitted before."""
        if not self.spare:
            handle = ffi().new("VkCommandBuffer *")
            info = make("VkCommandBufferAllocateInfo", commandPool=self._pool)
            self._device.call("vkAllocateCommandBuffers", "record", info, handle)
            self.spare.append(Commands(handle[0], make("VkSubmitInfo", pCommandBuffers=[handle[0]])))
        commands = self.spare.pop()
        self._device.check(commands.begin(usage), "record")
        return commands

    def end(self, commands: Commands) -> None:
        """Close a command buffer; what it wrote becomes visible to the host, once the fence is signalled."""
        commands.follow(HOST)
        self._device.check(lib().vkEndCommandBuffer(commands.handle), "record")

    def commands(self) -> Commands:
        """The open one-time command buffer; what is recorded runs at the next `flush`."""
        if self._open is not None and self._open.count >= BATCH:
            self.flush()
        self._open = self._open or self.begin(ONCE)
        self._open.count += 1
        return self._open

    def flush(self) -> None:
        """Submit what is open."""
        if self._open is not None:
            commands, self._open = self._open, None
            self.end(commands)
            self.submit(commands)

    def submit(self, commands: Commands) -> None:
        """After what is open. One-time commands are spare when they are done."""
        self.flush()
        if len(self._pending) >= MOST_PENDING:
            self.wait(self._submitted - MOST_PENDING + 1)
        fence = self._fences.pop() if self._fences else self._device.create("Fence", "submit")
        self._device.check(lib().vkQueueSubmit(self._queue, 1, commands.info, fence), "submit")
        self._pending.append((fence, commands))
        self._submitted += 1

    def wait(self, fence: int | None = None) -> None:
        """Wait for the first `fence` submissions (None: submit, then for all) in turn, each for a bounded time.

        A timeout asks the device: DeviceLostError if it is gone, GpuTimeoutError if it still answers.
        """
        until = self.fence() if fence is None else fence
        while self._submitted - len(self._pending) < until:
            first, commands = self._pending[0]
            fences = ffi().new("VkFence[]", [first])
            status = lib().vkWaitForFences(self._device.handle, 1, fences, 1, int(self._timeout() * 1e9))
            if status == TIMEOUT:
                status = min(lib().vkGetFenceStatus(self._device.handle, first), 0) or TIMEOUT
            self._device.check(status, "wait")
            self._device.call("vkResetFences", "wait", 1, fences)
            self._pending.popleft()
            self._fences.append(first)
            self.spare += [commands] if commands.usage == ONCE else []

    def fence(self) -> int:
        """How many submissions there are by now."""
        self.flush()
        return self._submitted

    def copy(self, slot: int, start: int, nbytes: int, buffer: VulkanBuffer, offset: int) -> None:
        """Of bytes that were put into a slot; a large one begins at once."""
        self.commands().copy(self._slots[slot], start, buffer, offset, nbytes)
        if nbytes >= LARGE:
            self.flush()

    def timed(self, launches: Sequence[VulkanLaunch]) -> list[int]:
        """Run launches once; ticks of each. Where a wait gives up, its queries, which may still be written, live on."""
        count, vk = 2 * len(launches), lib()
        pool = self._device.create("QueryPool", "record", queryCount=count)
        self.flush()
        commands = self.commands()
        vk.vkCmdResetQueryPool(commands.handle, pool, 0, count)
        for i, launch in enumerate(launches):
            commands.follow(COMPUTE)
            vk.vkCmdWriteTimestamp(commands.handle, _TOP, pool, 2 * i)
            commands.put(launch)
            vk.vkCmdWriteTimestamp(commands.handle, _BOTTOM, pool, 2 * i + 1)
        self.wait()
        ticks = ffi().new("uint64_t[]", count)
        self._device.call("vkGetQueryPoolResults", "wait", pool, 0, count, 8 * count, ticks, 8, _64_BITS)
        self._device.destroy("QueryPool", pool)
        return [max(1, ticks[i + 1] - ticks[i]) for i in range(0, count, 2)]
