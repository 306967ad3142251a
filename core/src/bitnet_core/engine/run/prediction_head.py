"""The multi-token prediction head of a model on its device: follows the trunk's steps and drafts tokens.

Row t of the head takes the trunk's row t and token t + 1, so the last row of a step waits for the token that is chosen
from it. The rows of a request wait until it needs a draft, or until they are too many. Rows that the head never gets,
such as those of multi-step greedy decoding, leave stale keys and values in its layer of the cache, which makes drafts
worse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, View, whole
from bitnet_hal.launcher import Launch, Launcher, RecordedLaunches

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens, build_batch
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.prediction import WAITING_ROWS, PredictionPlan, prediction_row_bytes, prediction_sizes
from bitnet_core.plan.scratch import Scratch

Placed = tuple[int, ScheduledTokens]
"""The place of the first row in a step, and the consecutive tokens of one request from there on."""

_KEPT_RECORDINGS = 16
"""Number of recordings that are kept for reuse."""


@dataclass(slots=True)
class _Waiting:
    """Waiting rows of a request: those of `tokens`, the first at position `first`."""

    first: int
    tokens: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)


class PredictionHead:
    """The head of one runner. chunk: maximum rows of a prompt step."""

    def __init__(
        self, device: Device, launcher: Launcher, pool: MemoryPool, plan: PredictionPlan, cache: KVCache, chunk: int
    ) -> None:
        self._device = device
        self._launcher = launcher
        self._pool = pool
        self._plan = plan
        self._cache = cache
        self._row_bytes = 4 * plan.config.hidden
        self._waiting: dict[int, _Waiting] = {}  # by req_index
        self._recordings: OrderedDict[tuple[str, int, int], RecordedLaunches] = OrderedDict()
        rows, wanted = prediction_sizes(chunk, cache.sequences)
        self._scratch = Scratch(device, pool, plan.config, rows, wanted, prediction_row_bytes(plan.config))
        try:
            plan.prepare_scratch(self._scratch)
            self._hidden = pool.alloc(cache.sequences * WAITING_ROWS * self._row_bytes)
        except BaseException:
            self._scratch.free()
            raise

    def follow(self, x: View, placed: Sequence[Placed]) -> None:
        """Take the hidden rows x[*, H] of a step. Those of a prompt are computed at once, except the last one."""
        few: list[Placed] = []
        for place, span in placed:
            waiting = self._waiting.get(span.req_index)
            if waiting is None or waiting.end != span.position:
                waiting = self._waiting[span.req_index] = _Waiting(span.position)
            if len(waiting.tokens) + len(span.tokens) <= WAITING_ROWS:
                few.append((place, span))
            else:
                few.append(self._compute(x, place, span, waiting))
        for start in range(0, len(few), self._most_spans):
            self._keep(x, few[start : start + self._most_spans])

    def draft(self, texts: Mapping[int, Sequence[int]], limits: Mapping[int, int]) -> dict[int, list[int]]:
        """Return draft tokens for each request, at most its limit, by req_index. texts: all tokens of each request, of
        which the last one is not computed. Requests whose last computed row the head did not get have no draft."""
        known = [req_index for req_index in limits if self._waits(req_index, len(texts[req_index]) - 1)]
        known = known[: self._scratch.wanted]
        if not known:
            return {}
        self._cache.upload_tables()
        drafts: dict[int, list[int]] = {req_index: [] for req_index in known}
        active = known
        chosen = self._first(texts, active)
        for depth in range(1, max(limits[req_index] for req_index in known) + 1):
            for req_index, token in zip(active, chosen, strict=True):
                if token >= 0:
                    drafts[req_index].append(token)
            places = [n for n, req_index in enumerate(active) if len(drafts[req_index]) == depth < limits[req_index]]
            if not places:
                break
            active = [active[place] for place in places]
            chosen = self._next(texts, drafts, active, places)
        return {req_index: draft for req_index, draft in drafts.items() if draft}

    def free(self) -> None:
        """Free buffers and recordings."""
        while self._recordings:
            self._recordings.popitem()[1].recording.close()
        self._scratch.free()
        self._pool.free(self._hidden)

    @property
    def _most_spans(self) -> int:
        return max(1, self._scratch.rows // WAITING_ROWS)

    def _waits(self, req_index: int, computed: int) -> bool:
        waiting = self._waiting.get(req_index)
        return waiting is not None and bool(waiting.tokens) and waiting.end == computed

    def _compute(self, x: View, place: int, span: ScheduledTokens, waiting: _Waiting) -> Placed:
        """Compute the waiting rows and those of a span except its last one, which is returned."""
        if waiting.tokens:
            following = (*waiting.tokens[1:], span.tokens[0])
            self._load_waiting(span.req_index, waiting, 0)
            self._layer([ScheduledTokens(span.req_index, waiting.first, following)], len(following))
        last = len(span.tokens) - 1
        for start in range(0, last, self._scratch.rows):
            tokens = span.tokens[start + 1 : min(start + self._scratch.rows, last) + 1]
            self._pick(x, np.arange(len(tokens)) + place + start)
            self._layer([ScheduledTokens(span.req_index, span.position + start, tokens)], len(tokens))
        self._waiting[span.req_index] = _Waiting(span.position + last)
        return place + last, ScheduledTokens(span.req_index, span.position + last, span.tokens[last:])

    def _keep(self, x: View, placed: Sequence[Placed]) -> None:
        """Add rows of x to the waiting ones."""
        self._pick(x, np.concatenate([place + np.arange(len(span.tokens)) for place, span in placed]))
        first = 0
        for _, span in placed:
            waiting = self._waiting[span.req_index]
            rows = len(span.tokens)
            kept = self._kept(span.req_index, len(waiting.tokens), rows)
            self._device.copy(self._plan.hidden(self._scratch, first, rows), kept)
            waiting.tokens += span.tokens
            first += rows

    def _first(self, texts: Mapping[int, Sequence[int]], requests: Sequence[int]) -> list[int]:
        """Compute the waiting rows of the requests; returns the tokens predicted by the last row of each."""
        spans: list[ScheduledTokens] = []
        lasts: list[int] = []
        rows = 0
        for req_index in requests:
            waiting = self._waiting[req_index]
            self._load_waiting(req_index, waiting, rows)
            spans.append(
                ScheduledTokens(req_index, waiting.first, tuple(texts[req_index][waiting.first + 1 : waiting.end + 1]))
            )
            rows += len(waiting.tokens)
            lasts.append(rows - 1)
            self._waiting[req_index] = _Waiting(waiting.end)
        self._layer(spans, rows)
        return self._choose(rows, lasts)

    def _next(
        self,
        texts: Mapping[int, Sequence[int]],
        drafts: Mapping[int, Sequence[int]],
        requests: Sequence[int],
        places: Sequence[int],
    ) -> list[int]:
        """Compute the row of the last draft token of each request. places: its rows in the previous step."""
        spans: list[ScheduledTokens] = []
        normed = self._scratch.view("normed", self._scratch.wanted)
        for row, (req_index, place) in enumerate(zip(requests, places, strict=True)):
            position = len(texts[req_index]) - 2 + len(drafts[req_index])
            spans.append(ScheduledTokens(req_index, position, (drafts[req_index][-1],)))
            hidden = self._plan.hidden(self._scratch, row, 1)
            self._device.copy(normed.part(place * self._row_bytes, self._row_bytes), hidden)
        self._layer(spans, len(spans))
        return self._choose(len(spans), range(len(spans)))

    def _choose(self, rows: int, wanted: Sequence[int]) -> list[int]:
        """Return the likeliest token of each wanted row, -1 if a logit is NaN or Inf."""
        scratch = self._scratch
        count = len(wanted)
        scratch.upload("index", np.asarray(wanted, np.int32))
        vocab = self._plan.config.vocab
        tokens = self._plan.config.tokens
        if "top_k" not in self._device.info.kernels:
            self._run("head", rows, count, lambda: self._plan.head(scratch, rows, count))
            logits = np.empty((count, vocab), np.float32)
            scratch.download("logits", logits)
            best = logits[:, :tokens].argmax(axis=1)
            return [int(token) if np.isfinite(row[token]) else -1 for row, token in zip(logits, best, strict=True)]
        self._run(
            "top1",
            rows,
            count,
            lambda: [*self._plan.head(scratch, rows, count), self._plan.trunk.shortlist(scratch, count, 1)],
        )
        _, values, _ = scratch.lists(count, 1)
        words = np.empty(values.offset // 4 + count, np.int32)
        scratch.download("lists", words)
        found = words[values.offset // 4 :].view(np.float32)
        return [int(words[n]) if np.isfinite(found[n]) else -1 for n in range(count)]

    def _layer(self, spans: Sequence[ScheduledTokens], rows: int) -> None:
        """Compute the head's layer over the hidden rows and these tokens."""
        self._cache.upload_tables()
        self._scratch.upload("step", build_batch(self._cache, spans, rows))
        self._run("layer", rows, 0, lambda: self._plan.layer(self._scratch, self._cache, rows))

    def _run(self, kind: str, rows: int, wanted: int, launches: Callable[[], list[Launch]]) -> None:
        key = (kind, rows, wanted)
        recorded = self._recordings.pop(key, None)
        self._recordings[key] = recorded = recorded or self._launcher.record(launches())
        self._launcher.replay(recorded)
        if len(self._recordings) > _KEPT_RECORDINGS:
            self._recordings.popitem(last=False)[1].recording.close()

    def _pick(self, x: View, rows: npt.NDArray[np.int64]) -> None:
        """Copy these rows of x to the first hidden rows."""
        self._scratch.upload("picked", rows.astype(np.int32))
        self._launcher.run([self._plan.pick_hidden(self._scratch, x, len(rows))])

    def _load_waiting(self, req_index: int, waiting: _Waiting, first: int) -> None:
        """Copy the waiting rows of a request to the hidden rows from `first` on."""
        rows = len(waiting.tokens)
        self._device.copy(self._kept(req_index, 0, rows), self._plan.hidden(self._scratch, first, rows))

    def _kept(self, req_index: int, first: int, rows: int) -> View:
        start = (req_index * WAITING_ROWS + first) * self._row_bytes
        return whole(self._hidden).part(start, rows * self._row_bytes)
