"""Command lists: what is queued goes into an open one, which is closed and executed when it must be on its way."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from bitnet_core.hal.base import Launch
from bitnet_core.hal.device import Tuning
from bitnet_core.kernels.spec import KernelSpec

from bitnet_levelzero.api import SCALARS, FenceDesc, GroupCount, ListDesc, QueueDesc, call, created, load
from bitnet_levelzero.errors import check
from bitnet_levelzero.memory import LevelZeroBuffer

MOST_COMMANDS = 256
"""Commands that wait for more before they are sent."""


@dataclass(frozen=True, eq=False, slots=True)
class LevelZeroKernel:
    """A module with its one kernel. A launch captures the arguments that are set when it is appended."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    module: c_void_p
    handle: c_void_p

    def free(self) -> None:
        """Destroy both."""
        call("zeKernelDestroy", self.handle)
        call("zeModuleDestroy", self.module)


LevelZeroLaunch = Launch[LevelZeroBuffer, LevelZeroKernel]


class CommandList:
    """Commands that run one after the other: a barrier stands before each of them."""

    def __init__(self, context: c_void_p, device: c_void_p, ordinal: int, name: str) -> None:
        self._name = name
        self.handle = created("zeCommandListCreate", context, device, byref(ListDesc(ordinal=ordinal)), device=name)
        self.count = 0

    def _append(self, command: str, *arguments: object, signal: c_void_p | None = None) -> None:
        ze = load()
        check(ze.zeCommandListAppendBarrier(self.handle, None, 0, None), "barrier", device=self._name)
        check(getattr(ze, f"zeCommandListAppend{command}")(self.handle, *arguments, signal, 0, None), command)
        self.count += 1

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between addresses."""
        self._append("MemoryCopy", target, source, nbytes)

    def zero(self, target: int, nbytes: int) -> None:
        """Fill with zeros; nbytes is a multiple of 4."""
        self._append("MemoryFill", target, byref(c_uint32(0)), 4, nbytes)

    def launch(self, launch: LevelZeroLaunch, signal: c_void_p | None = None) -> None:
        """A kernel; signal: an event for its times."""
        kernel, ze = launch.kernel, load()
        values: list[Any] = [c_void_p(buffer.address + offset) for buffer, offset, _ in launch.bound]
        for at, param in enumerate(kernel.spec.params):
            values.append(SCALARS[param.kind].from_buffer_copy(launch.params, 4 * at))
        for index, value in enumerate(values):
            size = ctypes.sizeof(value)
            check(ze.zeKernelSetArgumentValue(kernel.handle, index, size, byref(value)), f"argument {index}")
        self._append("LaunchKernel", kernel.handle, byref(GroupCount(*launch.grid)), signal=signal)

    def close(self) -> None:
        """Ready to be executed."""
        call("zeCommandListClose", self.handle, device=self._name)

    def reset(self) -> None:
        """Empty and open again; it must not be running."""
        call("zeCommandListReset", self.handle, device=self._name)
        self.count = 0

    def destroy(self) -> None:
        """It must not be running."""
        call("zeCommandListDestroy", self.handle, device=self._name)


class Queue:
    """One command queue, its open command list, and those that are on their way.

    A barrier waits for everything before it on the same queue, so lists, each of which begins with one, run in order.
    """

    def __init__(self, context: c_void_p, device: c_void_p, ordinal: int, name: str) -> None:
        self._made = context, device, ordinal, name
        self._name = name
        self.handle = created("zeCommandQueueCreate", context, device, byref(QueueDesc(ordinal=ordinal)), device=name)
        self._open: CommandList | None = None
        self._sent: list[CommandList] = []
        self._spare: list[CommandList] = []
        self._fences: list[c_void_p] = []
        self.busy = False

    def new_list(self) -> CommandList:
        """An empty one."""
        return CommandList(*self._made)

    @property
    def commands(self) -> CommandList:
        """The open list; the next `send` takes it along."""
        if self._open is not None and self._open.count >= MOST_COMMANDS:
            self.send()
        if self._open is None:
            self._open = self._spare.pop() if self._spare else self.new_list()
        self.busy = True
        return self._open

    def send(self, fence: c_void_p | None = None) -> None:
        """Execute what is queued; fence: reached when that is done."""
        commands, self._open = self._open, None
        if commands is None and fence is None:
            return
        commands = commands or self.new_list()
        commands.close()
        self._sent.append(commands)
        self.execute(commands, fence)

    def execute(self, commands: CommandList, fence: c_void_p | None = None) -> None:
        """Execute a closed list."""
        self.busy = True
        execute = load().zeCommandQueueExecuteCommandLists
        check(execute(self.handle, 1, byref(commands.handle), fence), "execute", device=self._name)

    def fence(self) -> c_void_p:
        """Reached when everything queued so far is done."""
        fence = created("zeFenceCreate", self.handle, byref(FenceDesc()), device=self._name)
        self._fences.append(fence)
        self.send(fence)
        return fence

    def wait(self, seconds: float) -> None:
        """Until everything is done; GpuTimeoutError after so long."""
        self.send()
        if not self.busy:
            return
        synchronize = load().zeCommandQueueSynchronize
        check(synchronize(self.handle, int(seconds * 1e9)), "synchronize", device=self._name)
        self.busy = False
        for commands in self._sent:
            commands.reset()
        self._spare, self._sent = self._spare + self._sent, []
        while self._fences:
            call("zeFenceDestroy", self._fences.pop(), device=self._name)

    def destroy(self) -> None:
        """Nothing may be running."""
        for commands in (*self._sent, *self._spare, *([self._open] if self._open else [])):
            commands.destroy()
        call("zeCommandQueueDestroy", self.handle, device=self._name)
