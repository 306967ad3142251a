"""Carries out steps on one device: prompts by direct launches, decoding by replaying a recording per row count."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device
from bitnet_hal.launcher import Launch, Launcher, Recorded

from bitnet_core.engine.bursts import Bursts
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.masks import RowMasks
from bitnet_core.engine.scores import Logits, Scores, Want
from bitnet_core.engine.spans import Span, bucket, step_rows
from bitnet_core.plan.hybrid import HybridPlan
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.scratch import SHORTLIST, Scratch, logit_rows
from bitnet_core.plan.weights import DeviceWeights

_LISTS = (1, 16, 64, SHORTLIST)
"""Lengths of shortlists, so that few recordings serve all."""

_KEPT_SHAPES = 4
"""Prompt steps of equal row counts reuse their launches; those of this many row counts are kept."""


class Runner:
    """Device state of an engine: scratch, recordings, and bursts of greedy tokens."""

    def __init__(
        self,
        device: Device,
        launcher: Launcher,
        pool: MemoryPool,
        weights: DeviceWeights,
        cache: KVCache,
        kv_dtype: str,
    ) -> None:
        self.device, self.launcher, self.pool = device, launcher, pool
        self.weights, self.cache = weights, cache
        self.plan = (HybridPlan if weights.config.delta else Plan)(weights, launcher, kv_dtype)
        self.vocab, self.tokens = weights.config.vocab, weights.config.tokens
        self.shortlists = "top_k" in device.info.kernels
        self._decode = Scratch(device, pool, weights.config, cache.sequences, cache.sequences)
        try:
            self._decode.upload("index", np.arange(cache.sequences, dtype=np.int32))
        except BaseException:
            self._decode.free()
            raise
        self._prompt: Scratch | None = None
        self._bodies: OrderedDict[int, list[Launch] | Recorded] = OrderedDict()
        self._recordings: dict[tuple[str, int], Recorded] = {}
        self.bursts = Bursts(device, launcher, self._decode, cache, partial(self._recorded, "greedy"))
        self._row_masks: WeakKeyDictionary[Scratch, RowMasks] = WeakKeyDictionary()

    def forward(self, spans: Sequence[Span], wanted: Sequence[int], chunk: int) -> npt.NDArray[np.float32]:
        """Compute the rows of `spans`, at most `chunk`; f32[len(wanted), V] logits of the rows numbered `wanted`."""
        steps = self.prompt_step(spans, wanted, [Want(0)] * len(wanted), chunk, self.vocab)
        rows = [scores.full() for scores in steps]
        return np.stack(rows) if rows else np.empty((0, self.vocab), np.float32)

    def prompt_step(
        self, spans: Sequence[Span], wanted: Sequence[int], wants: Sequence[Want], chunk: int, columns: int = 0
    ) -> Iterator[Scores]:
        """Compute the rows of `spans`, at most `chunk`; of each row numbered in `wanted`, what `wants` says, in the
        order of choosing.in_order (`columns`: of all logits those of the first tokens, else of those that exist). Each
        of the Scores is to be used before the next one."""
        rows = sum(len(span.tokens) for span in spans)
        scratch = self._prompt_scratch(rows, chunk)
        self.cache.upload_tables()
        scratch.upload("step", step_rows(self.cache, spans, rows))
        self._run_body(scratch, rows)
        return self._heads(scratch, rows, wanted, wants, columns or self.tokens)

    def _heads(
        self, scratch: Scratch, rows: int, wanted: Sequence[int], wants: Sequence[Want], columns: int
    ) -> Iterator[Scores]:
        for start in range(0, len(wanted), scratch.wanted):
            part = slice(start, start + scratch.wanted)
            index = np.asarray(wanted[part], np.int32)
            scratch.upload("index", index)
            keep = self._list_length(wants[part]) if self._short(wants[part]) else 0
            self.launcher.run(self.plan.head(scratch, rows, len(index), keep))
            yield from self._scores(scratch, wants[part], columns)

    def decode_step(self, rows: Sequence[Span], wants: Sequence[Want]) -> list[Scores]:
        """One step; of each row what `wants` says, in the order of choosing.in_order."""
        if self._short(wants):
            k = self._list_length(wants)
            self._replay_uploaded(f"top{k}", rows)
            return self._listed(self._decode, wants, k, self.tokens)
        self._replay_uploaded("logits", rows)
        return self._scores(self._decode, wants, self.tokens)

    def _scores(self, scratch: Scratch, wants: Sequence[Want], columns: int) -> list[Scores]:
        """What is wanted of the logits that are on the device: shortlists where they are on offer."""
        short = sum(want.k > 0 for want in wants) if self.shortlists else 0
        listed: list[Scores] = []
        if short:
            k, masks = self._list_length(wants), [want.mask() for want in wants if want.mask is not None]
            if masks:
                self._masks(scratch).upload(masks, short)
            self.launcher.run([self.plan.shortlist(scratch, short, k, masked=bool(masks))])
            listed = self._listed(scratch, wants[:short], k, columns)
        return listed + self._whole(scratch, short, len(wants), columns)

    def _short(self, wants: Sequence[Want]) -> bool:
        """The largest logits are all that is wanted."""
        return self.shortlists and all(want.k and not want.rest and want.mask is None for want in wants)

    def _list_length(self, wants: Sequence[Want]) -> int:
        longest = max(want.k for want in wants)
        return min(next(length for length in _LISTS if length >= longest), self.tokens)

    def _listed(self, scratch: Scratch, wants: Sequence[Want], k: int, columns: int) -> list[Scores]:
        """Shortlists that are on the device."""
        rows, rest = len(wants), any(want.rest for want in wants)
        ids_at, values_at, totals_at = (view.offset // 4 for view in scratch.lists(rows, k))
        words = np.empty(totals_at + 2 * rows if rest else values_at + rows * k, np.int32)
        scratch.download("lists", words)
        ids = words[ids_at : ids_at + rows * k].reshape(rows, k)
        values = words[values_at : values_at + rows * k].view(np.float32).reshape(rows, k)
        totals = words[totals_at:].view(np.float32).reshape(-1, 2).tolist() if rest else [(0.0, 0.0)] * rows
        sums = [
            (largest, log_sum) if want.rest else None for want, (largest, log_sum) in zip(wants, totals, strict=True)
        ]
        return [
            Scores(partial(self._logits, scratch, row, columns), ids[row], values[row], total)
            for row, total in enumerate(sums)
        ]

    def _whole(self, scratch: Scratch, first: int, end: int, columns: int) -> list[Scores]:
        """All logits of consecutive rows, read at once."""
        if first == end:
            return []
        logits = np.empty((end - first, self.vocab), np.float32)
        self._read_logits(scratch, first, logits)
        return [Scores(partial(_same, row[:columns])) for row in logits]

    def _logits(self, scratch: Scratch, row: int, columns: int) -> Logits:
        logits = np.empty((1, self.vocab), np.float32)
        self._read_logits(scratch, row, logits)
        return logits[0, :columns]

    def _read_logits(self, scratch: Scratch, first: int, out: Logits) -> None:
        part = scratch.view("logits", first + len(out)).part(4 * self.vocab * first, out.nbytes)
        self.device.download(part, out.data.cast("B"))

    def _masks(self, scratch: Scratch) -> RowMasks:
        found = self._row_masks.get(scratch)
        if found is None:
            found = self._row_masks[scratch] = RowMasks(scratch, self.tokens)
        return found

    def recordings(self) -> dict[str, Recorded]:
        """The recordings there are, by what they do. Whoever replays one moves its rows on: only between texts."""
        self.bursts.forget()
        found = {f"{kind} decode, {size} rows": recorded for (kind, size), recorded in self._recordings.items()}
        prompts = {f"prompt, {rows} rows": body for rows, body in self._bodies.items() if isinstance(body, Recorded)}
        return found | prompts

    def drop_scratch(self) -> bool:
        """Give back what a prompt needs but decoding does not; False if there was nothing."""
        if self._prompt is None:
            return False
        while self._bodies:
            self._close(self._bodies.popitem()[1])
        self._prompt.free()
        self._prompt = None
        return True

    def free(self) -> None:
        """Give back scratch, recordings and the cache, but not the weights."""
        for recorded in self._recordings.values():
            recorded.recording.close()
        self._recordings.clear()
        self.drop_scratch()
        self._decode.free()
        self.cache.free()

    def _prompt_scratch(self, rows: int, chunk: int) -> Scratch:
        """Room for `rows` <= chunk rows; it grows by powers of two, so that short prompts take little memory."""
        if self._prompt is None or self._prompt.rows < rows:
            self.drop_scratch()
            config, room = self.weights.config, min(chunk, 1 << (rows - 1).bit_length())
            self._prompt = Scratch(self.device, self.pool, config, room, logit_rows(config, room))
        return self._prompt

    def _run_body(self, scratch: Scratch, rows: int) -> None:
        """All layers over a prompt step: direct launches at first, a recording for a row count that comes again."""
        body = self._bodies.pop(rows, None)
        if body is None:
            body = self.plan.body(scratch, self.cache, rows)
            self.launcher.run(body)
        else:
            if not isinstance(body, Recorded):
                body = self.launcher.record(body)
            self.launcher.replay(body)
        self._bodies[rows] = body
        if len(self._bodies) > _KEPT_SHAPES:
            self._close(self._bodies.popitem(last=False)[1])

    @staticmethod
    def _close(body: list[Launch] | Recorded) -> None:
        if isinstance(body, Recorded):
            body.recording.close()

    def _replay_uploaded(self, kind: str, rows: Sequence[Span]) -> None:
        size = bucket(len(rows), self.cache.sequences)
        recorded = self._recorded(kind, size)
        self.bursts.forget()
        self.cache.upload_tables()
        self._decode.upload("step", step_rows(self.cache, rows, size))
        self.launcher.replay(recorded)

    def _recorded(self, kind: str, size: int) -> Recorded:
        """The recording of a decode step; kind is "logits", "greedy", or "top" and a number."""
        recorded = self._recordings.get((kind, size))
        if recorded is None:
            launches = self.plan.body(self._decode, self.cache, size, decode=True)
            keep = 0 if kind == "logits" else 1 if kind == "greedy" else int(kind.removeprefix("top"))
            launches += self.plan.head(self._decode, size, size, keep)
            if kind == "greedy":
                launches.append(self.plan.advance(self._decode, self.cache, size))
            elif keep:
                launches.append(self.plan.shortlist(self._decode, size, keep))
            recorded = self._recordings[kind, size] = self.launcher.record(launches)
        return recorded


def _same(logits: Logits) -> Logits:
    return logits
