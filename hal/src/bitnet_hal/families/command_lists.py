"""Devices whose commands go into lists, which are closed, submitted with a fence, and come back when it is reached."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any, ClassVar, Generic, TypeVar

from bitnet_hal.driver.staged_transfers import StagedDevice
from bitnet_hal.launches import B, BoundLaunch, K, LaunchRecording

L = TypeVar("L")
MOST_PENDING = 64
"""Submissions under way, of which the first is waited for before there is another."""


class CommandListDevice(StagedDevice[B, K], Generic[B, K, L]):
    """A recording is a closed list, which each replay submits again; nothing is created per submission once there are
    lists and fences enough. What is submitted runs in order.

    batch: commands of one submission: the device starts while the host still adds the rest, and none runs for long.
    """

    batch: ClassVar[int]

    def __init__(self, *described: Any) -> None:
        super().__init__(*described)
        self._open: L | None = None
        self._count = self._submitted = 0
        self._spare: list[L] = []
        self._fences: list[Any] = []
        self._pending: deque[tuple[Any, L | None]] = deque()

    # What a plugin writes, beside what StagedDevice leaves to it.

    @abstractmethod
    def _new_list(self) -> L:
        """One that `_open_list` may open."""

    @abstractmethod
    def _open_list(self, commands: L, *, again: bool) -> None:
        """Empty it, for commands whose first waits for all that was submitted before. again: it is submitted more than
        once, also before it is done."""

    @abstractmethod
    def _close_list(self, commands: L) -> None:
        """No more commands come; what they wrote is visible to the host once the fence is reached."""

    @abstractmethod
    def _new_fence(self) -> Any:
        """One that a submission may reach."""

    @abstractmethod
    def _execute(self, commands: L, fence: Any) -> None:
        """Submit a closed list."""

    @abstractmethod
    def _pass(self, fence: Any) -> None:
        """Wait until it is reached, and make it ready to be used again; GpuTimeoutError after `timeout` seconds."""

    @abstractmethod
    def _launch(self, commands: L, launch: BoundLaunch[B, K]) -> None:
        """Add a launch, which waits for the command before it."""

    # What it may use.

    def _commands(self) -> L:
        """The open list, for one more command, which runs at the next `flush`."""
        if self._count >= self.batch:
            self.flush()
        if self._open is None:
            self._open = self._emptied(again=False)
        self._count += 1
        return self._open

    def flush(self) -> None:
        """Submit what is open."""
        if self._open is not None:
            commands, self._open, self._count = self._open, None, 0
            self._close_list(commands)
            self._submit(commands, commands)

    # What is the same for all.

    def _emptied(self, *, again: bool) -> L:
        commands = self._spare.pop() if self._spare else self._new_list()
        self._open_list(commands, again=again)
        return commands

    def _submit(self, commands: L, spare: L | None = None) -> None:
        """spare: the list, where it may be used for other commands when it is done."""
        if len(self._pending) >= MOST_PENDING:
            self._reach(self._submitted - MOST_PENDING + 1)
        fence = self._fences.pop() if self._fences else self._new_fence()
        self._execute(commands, fence)
        self._pending.append((fence, spare))
        self._submitted += 1

    def _fence(self) -> int:
        """How many submissions there are, with what is open."""
        self.flush()
        return self._submitted

    def _reach(self, fence: int) -> None:
        """The first `fence` submissions in turn, each for a bounded time."""
        while self._submitted - len(self._pending) < fence:
            first, spare = self._pending[0]
            self._pass(first)
            self._pending.popleft()
            self._fences.append(first)
            self._spare += [] if spare is None else [spare]

    def _wait(self) -> None:
        self._reach(self._fence())
        self._ring.drained()

    def _run(self, launch: BoundLaunch[B, K]) -> None:
        self._launch(self._commands(), launch)

    def _record(self, recording: LaunchRecording[B, K]) -> None:
        self.flush()
        recording.native = self._emptied(again=True)
        for launch in recording.launches:
            self._launch(recording.native, launch)
        self._close_list(recording.native)

    def _replay(self, recording: LaunchRecording[B, K]) -> None:
        self.flush()
        self._submit(recording.native)

    def _forget(self, recording: LaunchRecording[B, K]) -> None:
        if not self._closed:
            self._wait()
            self._spare.append(recording.native)
