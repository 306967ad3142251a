"""Read the logits of a step from the device: top-k lists if they suffice, else whole rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
from bitnet_hal.device import Device, View
from bitnet_hal.features import MAX_ASYNC_READ, AsyncReadbackDevice
from bitnet_hal.launcher import Launcher

from bitnet_core.engine.run.row_masks import RowMasks
from bitnet_core.engine.sampling.logits import Logits, LogitsRequest, TopLogits
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.scratch import SHORTLIST, Scratch

_LISTS = (1, 16, 64, SHORTLIST)
"""Lengths of top-k lists; few, so that few recordings serve all."""


class LogitsReader:
    """A reader of the logits that a plan computes. makes_lists: True if the device has the kernel top_k."""

    def __init__(self, device: Device, launcher: Launcher, plan: Plan) -> None:
        self._device = device
        self._launcher = launcher
        self._plan = plan
        self._vocab = plan.config.vocab
        self._tokens = plan.config.tokens
        self.makes_lists = "top_k" in device.info.kernels
        self._row_masks: WeakKeyDictionary[Scratch, RowMasks] = WeakKeyDictionary()

    def list_length(self, logits_requests: Sequence[LogitsRequest]) -> int:
        """Return the length of unmasked top-k lists that satisfy all requests; 0 if one needs more than these."""
        if not self.makes_lists:
            return 0
        for logits_request in logits_requests:
            if not logits_request.k or logits_request.rest or logits_request.mask is not None:
                return 0
        return self._longest(logits_requests)

    def read(self, scratch: Scratch, logits_requests: Sequence[LogitsRequest], columns: int) -> list[TopLogits]:
        """Read the requested logits of a step, and launch the kernels of the top-k lists first. columns: number of
        logits of a full row."""
        short = sum(logits_request.k > 0 for logits_request in logits_requests) if self.makes_lists else 0
        listed: list[TopLogits] = []
        if short:
            k = self._longest(logits_requests)
            masks = [logits_request.mask() for logits_request in logits_requests if logits_request.mask is not None]
            if masks:
                self._masks(scratch).upload(masks, short)
            self._launcher.run([self._plan.shortlist(scratch, short, k, masked=bool(masks))])
            listed = self.lists(scratch, logits_requests[:short], k, columns, short)
        return listed + self._whole(scratch, short, len(logits_requests), columns)

    def lists(
        self, scratch: Scratch, logits_requests: Sequence[LogitsRequest], k: int, columns: int, size: int
    ) -> list[TopLogits]:
        """Read top-k lists that are on the device. size: number of rows with lists, at least those of the requests."""
        lists = _Lists(scratch, logits_requests, k, size)
        scratch.download("lists", lists.words)
        return lists.rows(partial(self._row, scratch, columns))

    def reads_later(self, rows: int) -> bool:
        """Return whether `lists_later` can read one logit of each of `rows` rows."""
        info = self._device.info
        can_read = "async-readback" in info.features and 8 * rows + info.alignment <= MAX_ASYNC_READ
        return self.makes_lists and can_read

    def lists_later(
        self, scratch: Scratch, logits_requests: Sequence[LogitsRequest], k: int, columns: int
    ) -> Callable[[], list[TopLogits]]:
        """Return a function that waits for the queued top-k lists. Further work may be queued before it is called; full
        rows can no longer be read then."""
        lists = _Lists(scratch, logits_requests, k, len(logits_requests))
        nbytes = lists.words.nbytes
        read = self.reader(scratch.view("lists", 1, nbytes))

        def wait() -> list[TopLogits]:
            read(lists.words.data.cast("B"))
            scratch.pool.moved_bytes += nbytes
            return lists.rows(partial(self._row, scratch, columns))

        return wait

    def reader(self, view: View) -> Callable[[memoryview], None]:
        """Return a function that reads a view, at most MAX_ASYNC_READ bytes, once the work queued so far is done."""
        if "async-readback" in self._device.info.features:
            return cast(AsyncReadbackDevice, self._device).read_async(view)
        return partial(self._device.download, view)

    def _longest(self, logits_requests: Sequence[LogitsRequest]) -> int:
        """Return the length of lists that are long enough for each request."""
        longest = max(logits_request.k for logits_request in logits_requests)
        return min(next(length for length in _LISTS if length >= longest), self._tokens)

    def _whole(self, scratch: Scratch, first: int, end: int, columns: int) -> list[TopLogits]:
        """Read all logits of consecutive rows at once."""
        if first == end:
            return []
        logits = np.empty((end - first, self._vocab), np.float32)
        self._download(scratch, first, logits)
        return [TopLogits(partial(_same, row[:columns])) for row in logits]

    def _row(self, scratch: Scratch, columns: int, row: int) -> Logits:
        logits = np.empty((1, self._vocab), np.float32)
        self._download(scratch, row, logits)
        return logits[0, :columns]

    def _download(self, scratch: Scratch, first: int, out: Logits) -> None:
        part = scratch.view("logits", first + len(out)).part(4 * self._vocab * first, out.nbytes)
        self._device.download(part, out.data.cast("B"))

    def _masks(self, scratch: Scratch) -> RowMasks:
        found = self._row_masks.get(scratch)
        if found is None:
            found = self._row_masks[scratch] = RowMasks(scratch, self._tokens)
        return found


class _Lists:
    """Host memory for the top-k lists of a step. words: in the layout of Scratch.lists. size: number of rows with lists
    on the device, at least those of the requests."""

    def __init__(self, scratch: Scratch, logits_requests: Sequence[LogitsRequest], k: int, size: int) -> None:
        self._rests = [logits_request.rest for logits_request in logits_requests]
        self._k = k
        self._at = tuple(view.offset // 4 for view in scratch.lists(size, k))
        _, values_at, totals_at = self._at
        rows = len(logits_requests)
        self.words = np.empty(totals_at + 2 * rows if any(self._rests) else values_at + rows * k, np.int32)

    def rows(self, full: Callable[[int], Logits]) -> list[TopLogits]:
        """Return the lists that were read. full: reads all logits of a row."""
        rows, k, words = len(self._rests), self._k, self.words
        ids_at, values_at, totals_at = self._at
        ids = words[ids_at : ids_at + rows * k].reshape(rows, k)
        values = words[values_at : values_at + rows * k].view(np.float32).reshape(rows, k)
        totals = words[totals_at:].view(np.float32).reshape(-1, 2).tolist() if any(self._rests) else [(0.0, 0.0)] * rows
        sums = [(largest, log) if rest else None for rest, (largest, log) in zip(self._rests, totals, strict=True)]
        return [TopLogits(partial(full, row), ids[row], values[row], total) for row, total in enumerate(sums)]


def _same(logits: Logits) -> Logits:
    return logits
