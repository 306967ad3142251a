"""Base class of devices whose commands go into lists that are closed, submitted with a fence, and reused after it."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from bitnet_hal.driver.staged_transfers import StagedDevice
from bitnet_hal.launches import B, BoundLaunch, K, LaunchRecording

L = TypeVar("L")
MOST_PENDING = 64
"""Maximum pending submissions; at the limit, the oldest is waited for."""


class CommandListDevice(StagedDevice[B, K], Generic[B, K, L]):
    """A device with command lists. Submissions run in order; lists and fences are reused.

    A recording is a closed list that each replay submits again.

    batch: maximum commands per submission, so that the device starts while the host adds the rest, and no submission
    runs for long.
    """

    batch: ClassVar[int]

    def __init__(self, *described: Any) -> None:
        super().__init__(*described)
        self._open: L | None = None
        self._count = self._submitted = 0
        self._spare: list[L] = []
        self._fences: list[Any] = []
        self._pending: deque[tuple[Any, L | None]] = deque()

    # Abstract methods, beside those of StagedDevice.

    @abstractmethod
    def _new_list(self) -> L:
        """Create a command list, not yet open."""

    @abstractmethod
    def _open_list(self, commands: L, *, again: bool) -> None:
        """Clear and open a list. Its first command must wait for all earlier submissions.

        again: the list will be submitted several times, possibly before it is done.
        """

    @abstractmethod
    def _close_list(self, commands: L) -> None:
        """Close a list. Results of its commands must be visible to the host once the fence is reached."""

    @abstractmethod
    def _new_fence(self) -> Any:
        """Create a fence, not yet reached."""

    @abstractmethod
    def _execute(self, commands: L, fence: Any) -> None:
        """Submit a closed list with a fence."""

    @abstractmethod
    def _pass(self, fence: Any) -> None:
        """Wait for a fence and reset it. Raises GpuTimeoutError after `timeout` seconds."""

    @abstractmethod
    def _launch(self, commands: L, launch: BoundLaunch[B, K]) -> None:
        """Add a launch, which waits for the previous command."""

    def _submitted_launches(self, launches: Sequence[BoundLaunch[B, K]]) -> Sequence[BoundLaunch[B, K]]:
        """Return the launches that a recording of `launches` submits: the same, unless a plugin joins some."""
        return launches

    # Helpers for a plugin.

    def _commands(self) -> L:
        """Return the open list for one more command, which runs after the next `flush`."""
        if self._count >= self.batch:
            self.flush()
        if self._open is None:
            self._open = self._emptied(again=False)
        self._count += 1
        return self._open

    def flush(self) -> None:
        """Submit the open list, if any."""
        if self._open is not None:
            commands = self._open
            self._open = None
            self._count = 0
            self._close_list(commands)
            self._submit(commands, commands)

    # The implementation of BaseDevice's methods.

    def _emptied(self, *, again: bool) -> L:
        commands = self._spare.pop() if self._spare else self._new_list()
        self._open_list(commands, again=again)
        return commands

    def _submit(self, commands: L, spare: L | None = None) -> None:
        """Submit a closed list. spare: the same list if it may be reused once done."""
        if len(self._pending) >= MOST_PENDING:
            self._reach(self._submitted - MOST_PENDING + 1)
        fence = self._fences.pop() if self._fences else self._new_fence()
        self._execute(commands, fence)
        self._pending.append((fence, spare))
        self._submitted += 1

    def _fence(self) -> int:
        """Flush and return the number of submissions so far."""
        self.flush()
        return self._submitted

    def _reach(self, fence: int) -> None:
        """Wait for the first `fence` submissions in turn, each for at most `timeout` seconds."""
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
        for launch in self._submitted_launches(recording.launches):
            self._launch(recording.native, launch)
        self._close_list(recording.native)

    def _replay(self, recording: LaunchRecording[B, K]) -> None:
        self.flush()
        self._submit(recording.native)

    def _forget(self, recording: LaunchRecording[B, K]) -> None:
        if not self._closed:
            self._wait()
            self._spare.append(recording.native)
