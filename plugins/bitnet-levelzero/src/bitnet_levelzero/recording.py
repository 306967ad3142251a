"""Command lists, whose commands run one after another, and the queue that executes them, with bounded waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bitnet_hal.plugin import BoundLaunch, CommandListDevice, CompiledKernel, DeviceInfo, Handle

from bitnet_levelzero.api import load
from bitnet_levelzero.errors import check
from bitnet_levelzero.memory import Context, LevelZeroBuffer


@dataclass(frozen=True, eq=False, slots=True)
class LevelZeroKernel(CompiledKernel):
    """A module with one kernel. A launch captures the arguments that are set when it is appended."""

    module: Handle
    handle: Handle


LevelZeroLaunch = BoundLaunch[LevelZeroBuffer, LevelZeroKernel]


class QueuedDevice(CommandListDevice[LevelZeroBuffer, LevelZeroKernel, Handle]):
    """A device's only command queue.

    A barrier waits for everything before it on the same queue, and each list begins with one, so lists run in order. An
    immediate command list would be a second queue, whose commands would have to wait for recordings by events: the
    small read per token would save closing a list, but cost an event.
    """

    batch = 256

    def __init__(self, info: DeviceInfo, context: Context) -> None:
        super().__init__(info)
        self._context = context
        self._null = load().null
        self._queue = context.create("CommandQueue", context.handle, context.device, {"ordinal": context.ordinal})

    def _append(self, commands: Handle, command: str, *arguments: Any, signal: Handle = None) -> None:
        """Append a barrier and a command. signal: an event that records the command's start and end."""
        lib = load().lib
        null = self._null
        name = f"zeCommandListAppend{command}"
        check(lib.zeCommandListAppendBarrier(commands, null, 0, null), "zeCommandListAppendBarrier")
        check(getattr(lib, name)(commands, *arguments, signal or null, 0, null), name)

    def _launch(self, commands: Handle, launch: LevelZeroLaunch, signal: Handle = None) -> None:
        kernel = launch.kernel
        api = load()
        set_argument = api.lib.zeKernelSetArgumentValue
        values = [api.ffi.new("uintptr_t *", buffer.address + offset) for buffer, offset, _ in launch.bound]
        words = [launch.params[at : at + 4] for at in range(0, len(launch.params), 4)]
        for index, value in enumerate([*map(api.ffi.buffer, values), *words]):
            check(set_argument(kernel.handle, index, len(value), api.ffi.from_buffer(value)), f"argument {index}")
        self._append(commands, "LaunchKernel", kernel.handle, [launch.grid], signal=signal)

    def _new_list(self) -> Handle:
        description = {"commandQueueGroupOrdinal": self._context.ordinal}
        return self._context.create("CommandList", self._context.handle, self._context.device, description)

    def _open_list(self, commands: Handle, *, again: bool) -> None:
        check(load().lib.zeCommandListReset(commands), "zeCommandListReset")

    def _close_list(self, commands: Handle) -> None:
        check(load().lib.zeCommandListClose(commands), "zeCommandListClose")

    def _new_fence(self) -> Handle:
        return self._context.create("Fence", self._queue, {})

    def _execute(self, commands: Handle, fence: Handle) -> None:
        result = load().lib.zeCommandQueueExecuteCommandLists(self._queue, 1, [commands], fence)
        check(result, "zeCommandQueueExecuteCommandLists")

    def _pass(self, fence: Handle) -> None:
        lib = load().lib
        check(lib.zeFenceHostSynchronize(fence, int(self.timeout * 1e9)), "synchronize")
        check(lib.zeFenceReset(fence), "zeFenceReset")
