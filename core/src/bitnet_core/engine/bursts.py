"""Bursts of greedy tokens: rows that the device moves on by itself, and bursts queued before they are asked for.

The device does everything in the order in which it is queued. A row whose text turns out to have ended goes on in the
burst that was queued before: it writes behind that text's end into blocks that were the text's own when it was queued,
and whoever gets these writes them later. What is queued next begins by ending such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import MOST_READING, Device, ReadingDevice, View
from bitnet_hal.launcher import Launcher, Recorded

from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.spans import Span, bucket, step_rows, unused_rows
from bitnet_core.plan.scratch import HISTORY, Scratch

Read = Callable[[npt.NDArray[np.int32]], None]


@dataclass(frozen=True, slots=True)
class Burst:
    """Tokens under way: `count` of each row, from column `first` of the history that `read` waits for."""

    count: int
    first: int
    read: Read


class Bursts:
    """Rows in the step buffer of `scratch`; recorded(n): a greedy step of n of them."""

    def __init__(
        self,
        device: Device,
        launcher: Launcher,
        scratch: Scratch,
        cache: KVCache,
        recorded: Callable[[int], Recorded],
    ) -> None:
        self._launcher, self._scratch, self._cache, self._recorded = launcher, scratch, cache, recorded
        self._reading = cast(ReadingDevice, device).reading if "reading" in device.info.features else None
        self._rows: dict[Span, int] = {}  # places in the step buffer of what it holds once `_ahead` is asked for
        self._moving: set[int] = set()  # places whose rows every replay moves on
        self._size = 0  # rows of a replay
        self._history_used = HISTORY
        self._ahead: Burst | None = None  # follows `_rows`

    @property
    def go_ahead(self) -> bool:
        """Some can be queued behind those that are waited for."""
        return self._reading is not None

    def queued(self, rows: Sequence[Span]) -> int:
        """Tokens of each of these rows that are on their way already."""
        return self._ahead.count if self._ahead and rows and all(row in self._rows for row in rows) else 0

    def forget(self) -> None:
        """Somebody else has used the step buffer, or blocks have changed hands: rows may be another text's."""
        self._rows, self._ahead = {}, None

    def make(
        self, rows: Sequence[Span], count: int, ahead: int = 0, going_on: Sequence[Span] = ()
    ) -> npt.NDArray[np.int32]:
        """i32[len(rows), count] greedy tokens that follow each row; count <= HISTORY. -1 from where a row's logits are
        not numbers. Where tokens are `queued`, count is their number.

        Nothing is uploaded while the same rows go on. ahead: tokens of the rows `going_on` to queue behind these, so
        that the device goes on while the host looks at these; what is not asked for next is made for nothing. None
        are queued where fewer rows make a faster step, or rows are too many to be read on the way.
        """
        self._cache.upload_tables()
        queued = self._ahead if self.queued(rows) else None
        if queued is None and not self._go_on(rows):
            self._put(rows)
        places = dict(zip(rows, map(self._rows.__getitem__, rows), strict=True))
        self.forget()
        burst = queued or self._queue(places.values(), count)
        coming = None
        if ahead and self._bucket(len(going_on)) == self._size and self._history().nbytes <= MOST_READING:
            coming = self._queue([places[row] for row in going_on], ahead)
        tokens = self._tokens(burst, list(places.values()))
        ends = zip(places.items(), tokens[:, -1].tolist(), strict=True)
        self._rows = {
            Span(row.lane, row.position + count, (token,)): place
            for (row, place), token in ends
            if token >= 0 and place in self._moving
        }
        self._ahead = coming
        return tokens

    def _bucket(self, rows: int) -> int:
        return bucket(rows, self._cache.sequences)

    def _go_on(self, rows: Sequence[Span]) -> bool:
        """The device has them, and no faster step would do."""
        return all(row in self._rows for row in rows) and self._bucket(len(rows)) == self._size

    def _put(self, rows: Sequence[Span]) -> None:
        """Upload rows in place of those that are there."""
        self._rows, self._moving = {}, set()
        self._size = self._bucket(len(rows))
        self._scratch.upload("step", step_rows(self._cache, rows, self._size))
        self._history_used = HISTORY  # counts begin anew
        self._rows = {row: place for place, row in enumerate(rows)}
        self._moving = set(self._rows.values())

    def _queue(self, places: Iterable[int], count: int) -> Burst:
        """Queue steps of the rows in `places`; all others end."""
        for place in sorted(self._moving.difference(places)):
            self._scratch.upload("step", unused_rows(1), place)
            self._moving.remove(place)
        if self._history_used + count > HISTORY:
            self._scratch.upload("history", np.zeros((self._size, HISTORY + 1), np.int32))
            self._history_used = 0
        self._launcher.replay(self._recorded(self._size), count)
        first, self._history_used = 1 + self._history_used, self._history_used + count
        return Burst(count, first, self._read())

    def _read(self) -> Read:
        """Reads the history as it is once what is queued now is done."""
        if self._reading and self._history().nbytes <= MOST_READING:
            read = self._reading(self._history())
            return lambda history: read(history.data.cast("B"))
        return partial(self._scratch.download, "history")

    def _history(self) -> View:
        return self._scratch.view("history", self._size)

    def _tokens(self, burst: Burst, places: list[int]) -> npt.NDArray[np.int32]:
        history = np.empty((self._size, HISTORY + 1), np.int32)
        burst.read(history)
        rows = history[places]
        tokens = rows[:, burst.first : burst.first + burst.count]
        made = rows[:, :1] - (burst.first - 1)
        return np.where(np.arange(burst.count) < made, tokens, np.int32(-1))
