"""A queue that works in order: command buffers, submission, bounded waiting."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass

from bitnet_core.errors import UsageError
from bitnet_core.hal import DeviceType

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make
from bitnet_vulkan.errors import Stage, VkResult, check, fail
from bitnet_vulkan.hazards import Hazards
from bitnet_vulkan.instance import PhysicalDevice

BATCH = 64
"""Commands in one submission: the GPU starts while Python still records the rest, and no submission runs for long."""


def wait_seconds(software: bool) -> float:
    """How long one submission may take: BITNET_VULKAN_TIMEOUT, by default 5, or 60 on a software device (which
    compiles a kernel when it first runs)."""
    text = os.environ.get("BITNET_VULKAN_TIMEOUT", "60" if software else "5")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise UsageError(f"BITNET_VULKAN_TIMEOUT={text} is not a number of seconds above 0")
    return seconds


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer with the hazards recorded into it."""

    handle: Handle
    hazards: Hazards
    count: int = 0


class Queue:
    """Submits in order; nothing is created per submission once the pools have grown.

    after: another queue, of which all must be done before anything is submitted here.
    """

    def __init__(self, device: Handle, physical: PhysicalDevice, family: int, after: Queue | None = None) -> None:
        self._device, self._name = device, physical.info.name
        self._compute, self._after = family == physical.queue_family, after
        self._timeout = int(wait_seconds(physical.info.type is DeviceType.SOFTWARE) * 1e9)
        queue = ffi().new("VkQueue *")
        lib().vkGetDeviceQueue(device, family, 0, queue)
        self._queue = queue[0]
        pool = ffi().new("VkCommandPool *")
        flags = constant("VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT")
        create = make("VkCommandPoolCreateInfo", flags=flags, queueFamilyIndex=family)
        check(lib().vkCreateCommandPool(device, create, ffi().NULL, pool), Stage.COMMAND_BUFFER, device=self._name)
        self._pool = pool[0]
        self._open: Commands | None = None
        self._spare: list[Commands] = []
        self._fences: list[Handle] = []
        self._pending: deque[tuple[Handle, Commands | None]] = deque()

    def new_commands(self, *, once: bool) -> Commands:
        """A command buffer that has begun, starting with a barrier against all that was submitted before."""
        if once and self._spare:
            commands = self._spare.pop()
            commands.count = 0
        else:
            info = make(
                "VkCommandBufferAllocateInfo",
                commandPool=self._pool,
                level=constant("VK_COMMAND_BUFFER_LEVEL_PRIMARY"),
                commandBufferCount=1,
            )
            handle = ffi().new("VkCommandBuffer *")
            check(lib().vkAllocateCommandBuffers(self._device, info, handle), Stage.COMMAND_BUFFER, device=self._name)
            commands = Commands(handle[0], Hazards(compute=self._compute))
        usage = "ONE_TIME_SUBMIT" if once else "SIMULTANEOUS_USE"
        begin = make("VkCommandBufferBeginInfo", flags=constant(f"VK_COMMAND_BUFFER_USAGE_{usage}_BIT"))
        check(lib().vkBeginCommandBuffer(commands.handle, begin), Stage.COMMAND_BUFFER, device=self._name)
        commands.hazards.full_barrier(commands.handle)
        return commands

    def end(self, commands: Commands) -> None:
        """Close a command buffer."""
        commands.hazards.host_barrier(commands.handle)
        check(lib().vkEndCommandBuffer(commands.handle), Stage.COMMAND_BUFFER, device=self._name)

    def commands(self) -> Commands:
        """The open one-time command buffer; what is recorded runs at the next `flush`."""
        if self._open is not None and self._open.count >= BATCH:
            self.flush()
        if self._open is None:
            self._open = self.new_commands(once=True)
        self._open.count += 1
        return self._open

    def flush(self) -> None:
        """Submit what is open."""
        if self._open is not None:
            commands, self._open = self._open, None
            self.end(commands)
            self._submit(submit_info(commands), commands)

    def submit_recorded(self, info: Handle) -> None:
        """Submit a prepared `submit_info` once more."""
        self.flush()
        self._submit(info, None)

    def _submit(self, info: Handle, commands: Commands | None) -> None:
        if self._after is not None:
            self._after.wait()
        while len(self._pending) > 1 and lib().vkGetFenceStatus(self._device, self._pending[0][0]) == VkResult.SUCCESS:
            self._retire()
        fence = self._fences.pop() if self._fences else self._new_fence()
        status = lib().vkQueueSubmit(self._queue, 1, info, fence)
        check(status, Stage.QUEUE, device=self._name)
        self._pending.append((fence, commands))

    def _new_fence(self) -> Handle:
        fence = ffi().new("VkFence *")
        create = make("VkFenceCreateInfo")
        check(lib().vkCreateFence(self._device, create, ffi().NULL, fence), Stage.QUEUE, device=self._name)
        return fence[0]

    def _retire(self) -> None:
        fence, commands = self._pending.popleft()
        handles = ffi().new("VkFence[]", [fence])
        check(lib().vkResetFences(self._device, 1, handles), Stage.WAIT, device=self._name)
        self._fences.append(fence)
        if commands is not None:
            self._spare.append(commands)

    def wait(self) -> None:
        """Submit, then wait for each submission in turn, each for a bounded time.

        A timeout asks the device: DeviceLostError if it is gone, GpuTimeoutError if it still answers.
        """
        self.flush()
        while self._pending:
            fences = ffi().new("VkFence[]", [self._pending[0][0]])
            status = lib().vkWaitForFences(self._device, 1, fences, 1, self._timeout)
            if status == VkResult.TIMEOUT:
                probe = lib().vkGetFenceStatus(self._device, fences[0])
                if probe != VkResult.SUCCESS:
                    fail(probe if probe < 0 else status, Stage.WAIT, device=self._name)
            else:
                check(status, Stage.WAIT, device=self._name)
            self._retire()

    def free_commands(self, commands: Commands) -> None:
        """Give a recorded command buffer back; the device must be idle."""
        lib().vkFreeCommandBuffers(self._device, self._pool, 1, ffi().new("VkCommandBuffer[]", [commands.handle]))

    def close(self) -> None:
        """Destroy fences and command buffers; the device must be idle."""
        for fence in [*self._fences, *(fence for fence, _ in self._pending)]:
            lib().vkDestroyFence(self._device, fence, ffi().NULL)
        self._fences.clear()
        self._pending.clear()
        lib().vkDestroyCommandPool(self._device, self._pool, ffi().NULL)


def submit_info(commands: Commands) -> Handle:
    """A VkSubmitInfo for one command buffer, to be kept with a recording."""
    return make("VkSubmitInfo", commandBufferCount=1, pCommandBuffers=[commands.handle])
