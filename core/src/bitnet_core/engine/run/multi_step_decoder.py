"""Multi-step greedy decoding: the device advances its rows by itself, and further steps can be queued in advance.

The device works in queue order. If a request ends, its row still runs in the steps that are already queued. It writes
past the request's end, into blocks that belonged to the request when the steps were queued and that their next owner
overwrites. The next upload deactivates such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, View
from bitnet_hal.features import MAX_ASYNC_READ, AsyncReadbackDevice
from bitnet_hal.launcher import RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens, build_batch, padded_rows, unused_rows
from bitnet_core.plan.scratch import HISTORY, Scratch

Read = Callable[[memoryview], None]


@dataclass(frozen=True, slots=True)
class StepsInFlight:
    """Queued steps: `count` tokens per row, from column `first` of the token ring. read: waits for the ring."""

    count: int
    first: int
    read: Read


class MultiStepDecoder:
    """A decoder of up to `rows` rows in the step buffer of `scratch`. recorded(n): returns the recording of a greedy
    step of n rows; replay(recording, times): runs it. size: n of the current recording. run_ahead: False if `replay`
    waits for other devices. changed: called after an upload to the step buffer."""

    def __init__(
        self,
        device: Device,
        scratch: Scratch,
        rows: int,
        cache: KVCache,
        recorded: Callable[[int], RecordedLaunches],
        replay: Callable[[RecordedLaunches, int], None],
        *,
        run_ahead: bool = True,
        changed: Callable[[], None] | None = None,
    ) -> None:
        self._replay = replay
        self._changed = changed
        self._scratch = scratch
        self._most_rows = rows
        self._cache = cache
        self._recorded = recorded
        self._read_async = (
            cast(AsyncReadbackDevice, device).read_async if "async-readback" in device.info.features else None
        )
        self.can_run_ahead = run_ahead and self._read_async is not None
        self._upload = device.upload
        self._download = device.download
        self._rows: dict[ScheduledTokens, int] = {}  # rows after those `in_flight`, and their places in the step buffer
        self._moving: set[int] = set()  # places whose rows every replay advances
        self.size = 0  # rows of a replay
        self._history_used = HISTORY
        self.in_flight: StepsInFlight | None = None
        self._recording: RecordedLaunches | None = None  # a step of `size` rows
        self._ring = scratch.view("history", 0)  # token ring of `size` rows
        self._step = scratch.view("step", 0)  # step buffer of `size` rows

    def queued(self, rows: Sequence[ScheduledTokens]) -> int:
        """Number of tokens of each of these rows that are in flight; 0 if one of the rows is not."""
        return self.in_flight.count if self.in_flight and rows and self._rows.keys() >= set(rows) else 0

    def place(self, row: ScheduledTokens) -> int | None:
        """Return the place in the step buffer of a row that follows one of the last step; None if there is none, or if
        steps are in flight."""
        return None if self.in_flight else self._rows.get(row)

    def forget(self) -> None:
        """Drop the rows and the steps in flight: another step used the step buffer, or blocks were reassigned."""
        self._rows = {}
        self.in_flight = None

    def decode(
        self, rows: Sequence[ScheduledTokens], count: int, ahead: int = 0, continuing: Sequence[ScheduledTokens] = ()
    ) -> npt.NDArray[np.int32]:
        """Decode `count` <= HISTORY greedy tokens after each row and return them as i32[len(rows), count], -1 from the
        first NaN or Inf among the logits on. While tokens are `queued`, count must be their number.

        Nothing is uploaded while the same rows continue. ahead: number of tokens of the rows `continuing` to queue
        after these, so that the device works while the host processes these; they are discarded if the next call asks
        for others. None are queued if fewer rows allow a faster step, or if the token ring is too large for an
        asynchronous readback.
        """
        buffer_rows, steps = self.take(rows)
        if steps is None:
            steps = self._queue(buffer_rows.values(), count)
        coming = None
        if ahead and self.fits_ring(continuing):
            coming = self._queue([buffer_rows[row] for row in continuing], ahead)
        tokens = self.read(buffer_rows, steps)
        self.in_flight = coming
        return tokens

    def take(self, rows: Sequence[ScheduledTokens]) -> tuple[dict[ScheduledTokens, int], StepsInFlight | None]:
        """Return the places of rows in the step buffer, and their steps in flight; uploads the rows if needed."""
        if self._cache.changed_tables:
            self._cache.upload_tables()
        holds = self._rows.keys() >= set(rows)
        queued = self.in_flight if holds and rows else None
        if queued is None and not (holds and padded_rows(len(rows), self._most_rows) == self.size):
            self._put(rows)  # the rows are not on the device, or a smaller recording suffices for them
        buffer_rows = dict(zip(rows, map(self._rows.__getitem__, rows), strict=True))
        self._rows = {}
        self.in_flight = None
        return buffer_rows, queued

    def read(self, buffer_rows: Mapping[ScheduledTokens, int], steps: StepsInFlight) -> npt.NDArray[np.int32]:
        """Wait for the tokens of rows, and store the rows that follow them; see `decode`."""
        tokens = self._tokens(steps, list(buffer_rows.values()))
        ends = zip(buffer_rows.items(), tokens[:, -1].tolist(), strict=True)
        for (row, buffer_row), token in ends:
            if token >= 0 and buffer_row in self._moving:
                self._rows[ScheduledTokens(row.req_index, row.position + steps.count, (token,))] = buffer_row
        return tokens

    def fits_ring(self, rows: Sequence[ScheduledTokens]) -> bool:
        """Return True if these rows need steps of the current size, and the token ring can be read asynchronously."""
        return padded_rows(len(rows), self._most_rows) == self.size and self._ring.nbytes <= MAX_ASYNC_READ

    def _put(self, rows: Sequence[ScheduledTokens]) -> None:
        """Replace the rows in the step buffer."""
        self._rows = {}
        self._moving = set()
        size = padded_rows(len(rows), self._most_rows)
        if self._recording is None or size != self.size:
            self._recording = self._recorded(size)
            self.size = size
            self._ring = self._scratch.view("history", size)
            self._step = self._scratch.view("step", size)
        self._upload_rows(build_batch(self._cache, rows, self.size), self._step)
        self._history_used = HISTORY  # the ring restarts
        self._rows = {row: buffer_row for buffer_row, row in enumerate(rows)}
        self._moving = set(self._rows.values())

    def _upload_rows(self, rows: npt.NDArray[np.int32], view: View) -> None:
        """Copy rows to a part of the step buffer."""
        self._upload(view, rows.data.cast("B"))
        self._scratch.pool.moved_bytes += rows.nbytes
        if self._changed is not None:
            self._changed()

    def _queue(self, buffer_rows: Iterable[int], count: int) -> StepsInFlight:
        first = self.prepare(buffer_rows, count)
        self.replay(count)
        return self.steps(first, count)

    def prepare(self, buffer_rows: Iterable[int], count: int) -> int:
        """Prepare `count` steps of the rows in `buffer_rows`, and deactivate all others. Returns the column of the
        token ring for the first tokens."""
        for buffer_row in sorted(self._moving.difference(buffer_rows)):
            unused = unused_rows(1)
            self._upload_rows(unused, self._step.part(buffer_row * unused.nbytes, unused.nbytes))
            self._moving.remove(buffer_row)
        if self._history_used + count > HISTORY:
            ring = np.zeros((self.size, HISTORY + 1), np.int32)
            self._upload(self._ring, ring.data.cast("B"))
            self._scratch.pool.moved_bytes += ring.nbytes
            self._history_used = 0
        first = 1 + self._history_used
        self._history_used += count
        return first

    def replay(self, times: int) -> None:
        """Queue steps of the current rows."""
        assert self._recording is not None  # `take` puts rows first
        self._replay(self._recording, times)

    def steps(self, first: int, count: int) -> StepsInFlight:
        """Return the steps that were queued last, with the function that reads their tokens."""
        if self._read_async is None or self._ring.nbytes > MAX_ASYNC_READ:
            return StepsInFlight(count, first, partial(self._download, self._ring))
        return StepsInFlight(count, first, self._read_async(self._ring))  # reads the ring after the queued work

    def _tokens(self, steps: StepsInFlight, buffer_rows: list[int]) -> npt.NDArray[np.int32]:
        history = np.empty((self.size, HISTORY + 1), np.int32)
        steps.read(history.data.cast("B"))
        self._scratch.pool.moved_bytes += history.nbytes
        rows = history[buffer_rows]
        tokens = rows[:, steps.first : steps.first + steps.count]
        made = rows[:, :1] - (steps.first - 1)
        return np.where(np.arange(steps.count) < made, tokens, np.int32(-1))
