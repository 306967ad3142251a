"""CommandListDevice on a device that runs lists as late as allowed: at the wait for their fence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from bitnet_hal.base import BoundLaunch
from bitnet_hal.device import MemoryKind, whole
from bitnet_hal.families.command_lists import MOST_PENDING, CommandListDevice
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel

Command = tuple[Any, ...]


@dataclass(eq=False)
class List:
    """A command list. again: it may be submitted repeatedly. on_its_way: number of pending submissions."""

    commands: list[Command] = field(default_factory=list)
    open: bool = False
    again: bool = False
    on_its_way: int = 0


class Listed(CommandListDevice[NumpyBuffer, NumpyKernel, List], NumpyDevice):
    """A device of lists. A fence is a list: empty while unused, else [reached]."""

    batch = 4

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[tuple[List, list[bool]]] = []
        self.lists: list[List] = []
        self.fences: list[list[bool]] = []
        slots = [self._alloc(256, MemoryKind.HOST) for _ in range(3)]
        self._stage(slots, [memoryview(slot.data) for slot in slots])

    def _new_list(self) -> List:
        self.lists.append(List())
        return self.lists[-1]

    def _open_list(self, commands: List, *, again: bool) -> None:
        assert not commands.on_its_way
        commands.commands, commands.open, commands.again = [], True, again

    def _close_list(self, commands: List) -> None:
        commands.open = False

    def _new_fence(self) -> list[bool]:
        self.fences.append([])
        return self.fences[-1]

    def _execute(self, commands: List, fence: list[bool]) -> None:
        assert not commands.open
        assert not fence
        assert commands.again or not commands.on_its_way
        commands.on_its_way += 1
        fence.append(False)
        self.queue.append((commands, fence))

    def _pass(self, fence: list[bool]) -> None:
        while not fence[0]:
            commands, reached = self.queue.pop(0)
            for action, *arguments in commands.commands:
                action(*arguments)
            commands.on_its_way -= 1
            reached[0] = True
        fence.clear()

    def _launch(self, commands: List, launch: BoundLaunch[NumpyBuffer, NumpyKernel]) -> None:
        commands.commands.append((lambda: NumpyDevice._run(self, launch),))

    def _copy(self, *transfer: Any) -> None:
        self._commands().commands.append((lambda: NumpyDevice._copy(self, *transfer),))


@pytest.fixture
def device() -> Listed:
    return Listed()


def test_commands_are_submitted_in_batches(device: Listed) -> None:
    first, second = (device.alloc(64) for _ in range(2))
    for _ in range(4):
        device.copy(whole(first), whole(second))
    assert not device.queue
    device.copy(whole(first), whole(second))
    assert len(device.queue) == 1
    device.synchronize()
    assert not device.queue


def test_no_more_lists_and_fences_than_are_under_way(device: Listed) -> None:
    buffer, content = device.alloc(16), bytearray(16)
    for turn in range(1000):
        device.upload(whole(buffer), memoryview(bytes([turn % 256]) * 16))
        device.download(whole(buffer), memoryview(content))
        assert content == bytes([turn % 256]) * 16
    assert (len(device.lists), len(device.fences)) == (1, 1)
    for _ in range(1000):
        device.copy(whole(buffer), whole(device.alloc(16)))
    assert len(device.queue) == MOST_PENDING
    assert len(device.lists) <= MOST_PENDING + 1


def test_a_recording_is_one_list_that_is_submitted_again(device: Listed) -> None:
    """A replay runs between earlier and later work, and its list is reused after the recording is closed."""
    launcher, spec = Launcher(device), CATALOGUE["rms_norm"]
    step, gamma, x, y = (device.alloc(nbytes) for nbytes in (4, 256, 256, 256))
    ones = np.ones(64, np.float32)
    device.upload(whole(gamma), memoryview(2 * ones).cast("B"))
    shape = {"rows": 1, "width": 64, "eps": 0.0}
    views = (whole(x), whole(step), whole(gamma), whole(y))
    recorded = launcher.record([launcher.prepare(spec, shape, views)])
    for value in (1, -3):
        device.upload(whole(x), memoryview(value * ones).cast("B"))
        device.replay(recorded.recording)
        device.replay(recorded.recording)
        found = np.empty(64, np.float32)
        device.download(whole(y), memoryview(found).cast("B"))
        np.testing.assert_allclose(found, 2 * np.sign(value))
    made = len(device.lists)
    recorded.recording.close()
    launcher.record([launcher.prepare(spec, shape, views)])
    assert len(device.lists) == made
