"""Command lists: what is queued goes into an open one, which is closed and executed when it must be on its way."""

from __future__ import annotations

from ctypes import byref, c_uint32, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any

from bitnet_core.hal.launches import Compiled, Launch

from bitnet_levelzero.api import SCALARS, FenceDesc, GroupCount, ListDesc, QueueDesc, call, created, load
from bitnet_levelzero.errors import check
from bitnet_levelzero.memory import Context, LevelZeroBuffer

MOST_COMMANDS = 256
"""Commands that wait for more before they are sent."""


@dataclass(frozen=True, eq=False, slots=True)
class LevelZeroKernel(Compiled):
    """A module with its one kernel. A launch captures the arguments that are set when it is appended."""

    module: c_void_p
    handle: c_void_p

    def free(self) -> None:
        """Destroy both."""
        call("zeKernelDestroy", self.handle)
        call("zeModuleDestroy", self.module)


class CommandList:
    """Commands that run one after the other: a barrier stands before each of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        desc = byref(ListDesc(ordinal=context.ordinal))
        self.handle = created("zeCommandListCreate", context.handle, context.device, desc)
        self.count = 0

    def _append(self, command: str, *arguments: object, signal: c_void_p | None = None) -> None:
        call("zeCommandListAppendBarrier", self.handle, None, 0, None)
        call(f"zeCommandListAppend{command}", self.handle, *arguments, signal, 0, None)
        self.count += 1

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between addresses, of memory that lives until it is done."""
        self._append("MemoryCopy", target, source, nbytes)

    def zero(self, target: int, nbytes: int) -> None:
        """Fill with zeros; nbytes is a multiple of 4."""
        self._append("MemoryFill", target, byref(c_uint32(0)), 4, nbytes)

    def launch(self, launch: Launch[LevelZeroBuffer, LevelZeroKernel], signal: c_void_p | None = None) -> None:
        """A kernel; signal: an event for its times."""
        kernel, set_argument = launch.kernel, load().zeKernelSetArgumentValue
        values: list[Any] = [c_void_p(buffer.address + offset) for buffer, offset, _ in launch.bound]
        for at, param in enumerate(kernel.spec.params):
            values.append(SCALARS[param.kind].from_buffer_copy(launch.params, 4 * at))
        for index, value in enumerate(values):
            check(set_argument(kernel.handle, index, sizeof(value), byref(value)), f"argument {index}")
        self._append("LaunchKernel", kernel.handle, byref(GroupCount(*launch.grid)), signal=signal)

    def close(self) -> None:
        """Ready to be executed."""
        call("zeCommandListClose", self.handle)

    def reset(self) -> None:
        """Empty and open again; it must not be running."""
        call("zeCommandListReset", self.handle)
        self.count = 0

    def destroy(self) -> None:
        """It must not be running."""
        call("zeCommandListDestroy", self.handle)


class Queue:
    """One command queue, its open command list, and those that are on their way.

    seconds: that a wait may take.

    A barrier waits for everything before it on the same queue, so lists, each of which begins with one, run in order.
    An immediate list would be a queue of its own, whose commands had to wait for recordings by events: the one small
    read of a token would save closing a list and pay for an event.
    """

    def __init__(self, context: Context, seconds: float) -> None:
        self._context, self._limit = context, int(seconds * 1e9)
        desc = byref(QueueDesc(ordinal=context.ordinal))
        self.handle = created("zeCommandQueueCreate", context.handle, context.device, desc)
        self._open: CommandList | None = None
        self._sent: list[CommandList] = []
        self._spare: list[CommandList] = []
        self._fences: list[c_void_p] = []
        self._busy = False

    @property
    def commands(self) -> CommandList:
        """The open list; the next `send` takes it along."""
        if self._open is not None and self._open.count >= MOST_COMMANDS:
            self.send()
        if self._open is None:
            self._open = self._spare.pop() if self._spare else CommandList(self._context)
        return self._open

    def send(self, fence: c_void_p | None = None) -> None:
        """Execute what is queued; fence: reached when that is done."""
        if self._open is None and fence is None:
            return
        commands, self._open = self.commands, None
        commands.close()
        self._sent.append(commands)
        self.execute(commands, fence)

    def execute(self, commands: CommandList, fence: c_void_p | None = None) -> None:
        """Execute a closed list."""
        self._busy = True
        call("zeCommandQueueExecuteCommandLists", self.handle, 1, byref(commands.handle), fence)

    def fence(self) -> c_void_p:
        """Reached when everything queued so far is done."""
        fence = created("zeFenceCreate", self.handle, byref(FenceDesc()))
        self._fences.append(fence)
        self.send(fence)
        return fence

    def wait(self, fence: c_void_p | None = None) -> None:
        """Until it is reached; without one, until everything is done. GpuTimeoutError where that takes too long."""
        if fence is not None:
            call("zeFenceHostSynchronize", fence, self._limit, doing="wait for an upload")
            return
        self.send()
        if not self._busy:
            return
        call("zeCommandQueueSynchronize", self.handle, self._limit, doing="synchronize")
        self._busy = False
        for commands in self._sent:
            commands.reset()
        self._spare, self._sent = self._spare + self._sent, []
        while self._fences:
            call("zeFenceDestroy", self._fences.pop())

    def destroy(self) -> None:
        """Nothing may be running."""
        for commands in (*self._sent, *self._spare, *([self._open] if self._open else [])):
            commands.destroy()
        call("zeCommandQueueDestroy", self.handle)
