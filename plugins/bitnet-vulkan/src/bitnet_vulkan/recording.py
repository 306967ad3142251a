"""Command buffers, whose commands run one after the other, and the queue that they go to, with bounded waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from struct import pack

from bitnet_core.errors import GpuError
from bitnet_core.hal.base import Launch

from bitnet_vulkan.compile import VulkanKernel
from bitnet_vulkan.describe import PhysicalDevice
from bitnet_vulkan.driver import Handle, create, destroy, ffi, lib, make
from bitnet_vulkan.errors import SUCCESS, TIMEOUT, Stage, check
from bitnet_vulkan.memory import VulkanBuffer

BATCH = 16
"""Commands in one submission: the GPU starts while Python still records the rest, and no submission runs for long."""
ONCE, MANY_TIMES = 1, 4
"""VkCommandBufferUsageFlagBits: ONE_TIME_SUBMIT, SIMULTANEOUS_USE."""
COMPUTE, TRANSFER, HOST = 0x800, 0x1000, 0x4000
"""VkPipelineStageFlagBits."""
_READS = {COMPUTE: 0x20, TRANSFER: 0x800, HOST: 0x2000}
_WRITES = {COMPUTE: 0x40, TRANSFER: 0x1000}
"""VkAccessFlagBits of the stages."""
_TOP, _BOTTOM = 0x1, 0x2000


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
        vk, handle, layout = lib(), self.handle, launch.kernel.layout
        words: list[int] = []
        for buffer, offset, nbytes in launch.bound:  # VkDescriptorBufferInfo
            words += buffer.address, offset, -(-nbytes // 4) * 4
        bound, params = pack(f"{len(words)}Q", *words), launch.params
        vk.vkCmdBindPipeline(handle, 1, launch.kernel.pipeline)
        layout.push(handle, layout.template, layout.handle, 0, ffi().from_buffer(bound))
        vk.vkCmdPushConstants(handle, layout.handle, 0x20, 0, len(params), ffi().from_buffer(params))
        vk.vkCmdDispatch(handle, *launch.grid)

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
    """Submits in order; nothing is created per submission once the pools have grown.

    timeout: gives the seconds that one submission may take.
    """

    def __init__(self, device: Handle, physical: PhysicalDevice, timeout: Callable[[], float]) -> None:
        self._device, self._name, self._timeout = device, physical.info.name, timeout
        queue = ffi().new("VkQueue *")
        lib().vkGetDeviceQueue(device, physical.queue_family, 0, queue)
        self._queue = queue[0]
        fields = {"flags": 2, "queueFamilyIndex": physical.queue_family}  # buffers are reset one by one
        self._pool = create("CommandPool", device, Stage.COMMANDS, self._name, **fields)
        self.submitted = self._done = 0
        self._open: Commands | None = None
        self._spare: list[Handle] = []
        self._fences: list[Handle] = []
        self._pending: deque[tuple[Handle, Handle | None]] = deque()  # fences, and buffers that are spare after them
        self.abandoned: list[Handle] = []  # query pools of commands that may still run

    def begin(self, usage: int) -> Commands:
        """A command buffer that has begun; its first command waits for all that was submitted before."""
        handle = ffi().new("VkCommandBuffer *")
        if self._spare:
            handle[0] = self._spare.pop()
        else:
            info = make("VkCommandBufferAllocateInfo", commandPool=self._pool, commandBufferCount=1)
            check(lib().vkAllocateCommandBuffers(self._device, info, handle), Stage.COMMANDS, self._name)
        status = lib().vkBeginCommandBuffer(handle[0], make("VkCommandBufferBeginInfo", flags=usage))
        check(status, Stage.COMMANDS, self._name)
        return Commands(handle[0])

    def end(self, commands: Commands) -> None:
        """Close a command buffer; what it wrote becomes visible to the host, once the fence is signalled."""
        commands.follow(HOST)
        check(lib().vkEndCommandBuffer(commands.handle), Stage.COMMANDS, self._name)

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
        while len(self._pending) > 1 and lib().vkGetFenceStatus(self._device, self._pending[0][0]) == SUCCESS:
            self._retire()
        fence = self._fences.pop() if self._fences else create("Fence", self._device, Stage.QUEUE, self._name)
        check(lib().vkQueueSubmit(self._queue, 1, info, fence), Stage.QUEUE, self._name)
        self._pending.append((fence, spare))
        self.submitted += 1

    def _retire(self) -> None:
        fence, spare = self._pending.popleft()
        check(lib().vkResetFences(self._device, 1, ffi().new("VkFence[]", [fence])), Stage.WAIT, self._name)
        self._fences.append(fence)
        self._done += 1
        if spare is not None:
            self._spare.append(spare)

    def wait(self, until: int | None = None) -> None:
        """Wait for the first `until` submissions (None: submit, then for all) in turn, each for a bounded time.

        A timeout asks the device: DeviceLostError if it is gone, GpuTimeoutError if it still answers.
        """
        if until is None:
            self.flush()
        while self._done < (self.submitted if until is None else until):
            fences = ffi().new("VkFence[]", [self._pending[0][0]])
            status = lib().vkWaitForFences(self._device, 1, fences, 1, int(self._timeout() * 1e9))
            if status == TIMEOUT:
                status = min(lib().vkGetFenceStatus(self._device, fences[0]), 0) or TIMEOUT
            check(status, Stage.WAIT, self._name)
            self._retire()

    def give_back(self, commands: Commands) -> None:
        """A recorded command buffer that is no longer submitted; the queue must be idle."""
        self._spare.append(commands.handle)

    def close(self) -> None:
        """Destroy fences and command buffers; the device must be idle."""
        for fence in [*self._fences, *(fence for fence, _ in self._pending)]:
            destroy("Fence", self._device, fence)
        for pool in self.abandoned:
            destroy("QueryPool", self._device, pool)
        destroy("CommandPool", self._device, self._pool)


def timed(
    device: Handle, physical: PhysicalDevice, queue: Queue, launches: Sequence[Launch[VulkanBuffer, VulkanKernel]]
) -> list[float]:
    """Run the launches once; seconds of each."""
    count, name = 2 * len(launches), physical.info.name
    if not count:
        return []
    pool = create("QueryPool", device, Stage.COMMANDS, name, queryType=2, queryCount=count)  # timestamps
    queue.flush()
    commands = queue.commands()
    lib().vkCmdResetQueryPool(commands.handle, pool, 0, count)
    for i, launch in enumerate(launches):
        commands.follow(COMPUTE)
        lib().vkCmdWriteTimestamp(commands.handle, _TOP, pool, 2 * i)
        commands.put(launch)
        lib().vkCmdWriteTimestamp(commands.handle, _BOTTOM, pool, 2 * i + 1)
    try:
        queue.wait()
    except GpuError:
        queue.abandoned.append(pool)
        raise
    ticks = ffi().new("uint64_t[]", count)
    check(lib().vkGetQueryPoolResults(device, pool, 0, count, 8 * count, ticks, 8, 1), Stage.WAIT, name)  # 64-bit
    destroy("QueryPool", device, pool)
    return [max(1, ticks[i + 1] - ticks[i]) * physical.timestamp_seconds for i in range(0, count, 2)]
