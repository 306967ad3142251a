"""Command buffers, whose commands run one after the other, and the queue that they go to, with bounded waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import pack

from bitnet_core.hal.base import Launch
from bitnet_core.hal.words import words_of

from bitnet_vulkan.compile import COMPUTE_PIPELINE, COMPUTE_STAGE, VulkanKernel
from bitnet_vulkan.driver import Handle, Logical, ffi, lib, make
from bitnet_vulkan.errors import SUCCESS, TIMEOUT
from bitnet_vulkan.memory import VulkanBuffer

BATCH = 16
"""Commands in one submission: the GPU starts while Python still records the rest, and no submission runs for long."""
LARGE = 1 << 20
"""Bytes of an upload that is worth a submission."""
ONCE, MANY_TIMES = 1, 4
"""VkCommandBufferUsageFlagBits: ONE_TIME_SUBMIT, SIMULTANEOUS_USE."""
COMPUTE, TRANSFER, HOST = 0x800, 0x1000, 0x4000
"""VkPipelineStageFlagBits."""
_READS = {COMPUTE: 0x20, TRANSFER: 0x800, HOST: 0x2000}
_WRITES = {COMPUTE: 0x40, TRANSFER: 0x1000}
"""VkAccessFlagBits of the stages."""
_TOP, _BOTTOM = 0x1, 0x2000
_RESET_ONE_BY_ONE, _TIMESTAMPS = 2, 2


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer. Each command waits for the one before it: in a plan nearly every launch reads what the last one
    wrote, so that asking which do would save nothing. last: its stage, at first any."""

    handle: Handle
    count: int = 0
    last: int = COMPUTE | TRANSFER

    def follow(self, stage: int) -> None:
        """What was done so far is finished, and visible to the next command, which is of this stage."""
        null = ffi().NULL
        memory = _barrier(self.last, stage)
        lib().vkCmdPipelineBarrier(self.handle, self.last, stage, 0, 1, memory, 0, null, 0, null)
        self.last = stage

    def put(self, launch: Launch[VulkanBuffer, VulkanKernel]) -> None:
        """Record a launch, after `follow(COMPUTE)`."""
        vk, handle, layout, params = lib(), self.handle, launch.kernel.layout, launch.params
        words: list[int] = []
        for buffer, offset, nbytes in launch.bound:  # VkDescriptorBufferInfo
            words += buffer.address, offset, words_of(nbytes)
        bound = ffi().from_buffer(pack(f"{len(words)}Q", *words))
        vk.vkCmdBindPipeline(handle, COMPUTE_PIPELINE, launch.kernel.pipeline)
        layout.push(handle, layout.template, layout.handle, 0, bound)
        vk.vkCmdPushConstants(handle, layout.handle, COMPUTE_STAGE, 0, len(params), ffi().from_buffer(params))
        vk.vkCmdDispatch(handle, *launch.grid)

    def launch(self, launch: Launch[VulkanBuffer, VulkanKernel]) -> None:
        """Record a launch."""
        self.follow(COMPUTE)
        self.put(launch)

    def copy(self, source: VulkanBuffer, source_at: int, target: VulkanBuffer, target_at: int, nbytes: int) -> None:
        """Record a copy."""
        self.follow(TRANSFER)
        region = make("VkBufferCopy", srcOffset=source_at, dstOffset=target_at, size=nbytes)
        lib().vkCmdCopyBuffer(self.handle, source.handle, target.handle, 1, region)

    def submit_info(self) -> Handle:
        """A VkSubmitInfo, to be kept with a recording."""
        return make("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[self.handle])


@cache
def _barrier(before: int, after: int) -> Handle:
    source = sum(access for stage, access in _WRITES.items() if stage & before)
    target = sum(access for stage, access in (*_READS.items(), *_WRITES.items()) if stage & after)
    return make("VkMemoryBarrier", srcAccessMask=source, dstAccessMask=target)


class Queue:
    """Submits in order; nothing is created per submission once the pools have grown. It copies uploads
    (bitnet_core.hal.staging.Copies) too.

    timeout: gives the seconds that one submission may take. slots: that uploads are copied from.
    """

    def __init__(
        self, device: Logical, family: int, timeout: Callable[[], float], slots: Sequence[VulkanBuffer]
    ) -> None:
        self._device, self._timeout, self._slots = device, timeout, slots
        queue = ffi().new("VkQueue *")
        lib().vkGetDeviceQueue(device.handle, family, 0, queue)
        self._queue = queue[0]
        self._pool = device.create("CommandPool", "record", flags=_RESET_ONE_BY_ONE, queueFamilyIndex=family)
        self.submitted = 0
        self._open: Commands | None = None
        self._spare: list[Handle] = []
        self._fences: list[Handle] = []
        self._pending: deque[tuple[Handle, Handle | None]] = deque()  # fences, and buffers that are spare after them

    def begin(self, usage: int) -> Commands:
        """A command buffer that has begun; its first command waits for all that was submitted before."""
        if not self._spare:
            handle = ffi().new("VkCommandBuffer *")
            info = make("VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=1)
            self._device.call("vkAllocateCommandBuffers", "record", info, handle)
            self._spare.append(handle[0])
        commands = Commands(self._spare.pop())
        status = lib().vkBeginCommandBuffer(commands.handle, make("VkCommandBufferBeginInfo", flags=usage))
        self._device.check(status, "record")
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
            self.submit(commands.submit_info(), commands.handle)

    def submit(self, info: Handle, spare: Handle | None = None) -> None:
        """Submit; `spare` may be recorded anew when that is done."""
        self.flush()
        while len(self._pending) > 1 and self._status() == SUCCESS:
            self._retire()
        fence = self._fences.pop() if self._fences else self._device.create("Fence", "submit")
        self._device.check(lib().vkQueueSubmit(self._queue, 1, info, fence), "submit")
        self._pending.append((fence, spare))
        self.submitted += 1

    def _status(self) -> int:
        """Of the first pending fence."""
        return int(lib().vkGetFenceStatus(self._device.handle, self._pending[0][0]))

    def _retire(self) -> None:
        """The first pending fence is signalled."""
        fence, spare = self._pending.popleft()
        self._device.call("vkResetFences", "wait", 1, ffi().new("VkFence[]", [fence]))
        self._fences.append(fence)
        self._spare += [spare] if spare is not None else []

    def wait(self, fence: int | None = None) -> None:
        """Wait for the first `fence` submissions (None: submit, then for all) in turn, each for a bounded time.

        A timeout asks the device: DeviceLostError if it is gone, GpuTimeoutError if it still answers.
        """
        if fence is None:
            self.flush()
        while self._pending and (fence is None or self.submitted - len(self._pending) < fence):
            fences = ffi().new("VkFence[]", [self._pending[0][0]])
            status = lib().vkWaitForFences(self._device.handle, 1, fences, 1, int(self._timeout() * 1e9))
            self._device.check(status if status != TIMEOUT else min(self._status(), 0) or TIMEOUT, "wait")
            self._retire()

    def copy(self, slot: int, start: int, nbytes: int, buffer: VulkanBuffer, offset: int) -> None:
        """Of bytes that were put into a slot; a large one begins at once."""
        self.commands().copy(self._slots[slot], start, buffer, offset, nbytes)
        if nbytes >= LARGE:
            self.flush()

    def fence(self) -> int:
        """How many submissions there are by now."""
        self.flush()
        return self.submitted

    def give_back(self, commands: Commands) -> None:
        """A recorded command buffer that is no longer submitted; the queue must be idle."""
        self._spare.append(commands.handle)

    def timed(self, launches: Sequence[Launch[VulkanBuffer, VulkanKernel]]) -> list[int]:
        """Run launches once; ticks of each. Where a wait gives up, its queries, which may still be written, live on."""
        count = 2 * len(launches)
        pool = self._device.create("QueryPool", "record", queryType=_TIMESTAMPS, queryCount=count)
        self.flush()
        commands = self.commands()
        lib().vkCmdResetQueryPool(commands.handle, pool, 0, count)
        for i, launch in enumerate(launches):
            commands.follow(COMPUTE)
            lib().vkCmdWriteTimestamp(commands.handle, _TOP, pool, 2 * i)
            commands.put(launch)
            lib().vkCmdWriteTimestamp(commands.handle, _BOTTOM, pool, 2 * i + 1)
        self.wait()
        ticks = ffi().new("uint64_t[]", count)
        self._device.call("vkGetQueryPoolResults", "wait", pool, 0, count, 8 * count, ticks, 8, 1)  # 64-bit
        self._device.destroy("QueryPool", pool)
        return [max(1, ticks[i + 1] - ticks[i]) for i in range(0, count, 2)]
