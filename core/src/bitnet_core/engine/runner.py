"""Carries out steps on one device: prompts by direct launches, decoding by replaying a recording per row count."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.masks import RowMasks
from bitnet_core.engine.scores import Logits, Scores, Want
from bitnet_core.hal.device import Device, ReadingDevice
from bitnet_core.kernels.catalogue import STEP_FIELDS
from bitnet_core.plan.hybrid import HybridPlan
from bitnet_core.plan.launcher import Launch, Launcher, Recorded
from bitnet_core.plan.layers import Plan
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.scratch import HISTORY, SHORTLIST, Scratch, logit_rows
from bitnet_core.plan.weights import DeviceWeights

_LISTS = (1, 16, 64, SHORTLIST)
"""Lengths of shortlists, so that few recordings serve all."""

_KEPT_SHAPES = 4
"""Prompt steps of equal row counts reuse their launches; those of this many row counts are kept."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence, to be computed; lane is the sequence's row of the block tables."""

    lane: int
    position: int  # of the first
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Burst:
    """Greedy tokens under way: `count` of each row, from column `first` of the history that `read` waits for."""

    count: int
    first: int
    read: Callable[[npt.NDArray[np.int32]], None]


class Runner:
    """Device state of an engine: scratch, recordings and the rows that greedy decoding keeps on the device."""

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
        self._resident: tuple[Span, ...] = ()  # what the decode step buffer holds, as of now
        self._history_used = HISTORY
        self._ahead: Burst | None = None  # follows the resident rows
        self._reading = cast(ReadingDevice, device).reading if "reading" in device.info.features else None
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
        scratch.upload("step", self._step(spans, rows))
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

    @property
    def goes_ahead(self) -> bool:
        """Tokens can be queued behind those that are waited for."""
        return self._reading is not None

    def queued(self, rows: Sequence[Span]) -> int:
        """Tokens of each of these rows that are on their way already."""
        return self._ahead.count if self._ahead and rows and tuple(rows) == self._resident else 0

    def forget(self) -> None:
        """Blocks have changed hands: the rows that the device has may be another text's."""
        self._resident = ()

    def decode_greedy(self, rows: Sequence[Span], count: int, ahead: int = 0) -> npt.NDArray[np.int32]:
        """i32[len(rows), count] greedy tokens that follow each row; count <= HISTORY. -1 from where a row's logits are
        not numbers. Where tokens are `queued`, count is their number.

        Nothing is uploaded while the same rows go on; the device advances them by itself. ahead: tokens to queue behind
        these, so that the device goes on while the host looks at these; what is not asked for next is made for nothing.
        """
        follows = tuple(rows) == self._resident
        burst = self._ahead if follows and self._ahead else self._begin(rows, count, follows)
        self._resident, self._ahead = (), None
        if ahead:
            self._ahead = self._begin(rows, ahead, follows=True)
        history = np.empty((self._bucket(len(rows)), HISTORY + 1), np.int32)
        burst.read(history)
        tokens = history[: len(rows), burst.first : burst.first + count].copy()
        for row, made in enumerate(history[: len(rows), 0] - (burst.first - 1)):
            tokens[row, max(made, 0) :] = -1
        if (tokens >= 0).all():
            self._resident = tuple(
                Span(row.lane, row.position + count, (token,))
                for row, token in zip(rows, tokens[:, -1].tolist(), strict=True)
            )
        return tokens

    def _begin(self, rows: Sequence[Span], count: int, follows: bool) -> Burst:
        """Queue a burst; follows: the device has these rows already."""
        bucket = self._bucket(len(rows))
        recorded = self._recorded("greedy", bucket)
        if not follows:
            self._decode.upload("step", self._step(rows, bucket))
        if not follows or self._history_used + count > HISTORY:
            self._decode.upload("history", np.zeros((bucket, HISTORY + 1), np.int32))
            self._history_used = 0
        self.launcher.replay(recorded, count)
        first, self._history_used = 1 + self._history_used, self._history_used + count
        if self._reading and bucket == 1:
            read = self._reading(self._decode.view("history", 1))
            return Burst(count, first, lambda history: read(history.data.cast("B")))
        return Burst(count, first, partial(self._decode.download, "history"))

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
        self._resident = ()
        found = {f"{kind} decode, {bucket} rows": recorded for (kind, bucket), recorded in self._recordings.items()}
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
        bucket = self._bucket(len(rows))
        recorded = self._recorded(kind, bucket)
        self._resident = ()
        self._decode.upload("step", self._step(rows, bucket))
        self.launcher.replay(recorded)

    def _recorded(self, kind: str, bucket: int) -> Recorded:
        """The recording of a decode step; kind is "logits", "greedy", or "top" and a number."""
        recorded = self._recordings.get((kind, bucket))
        if recorded is None:
            launches = self.plan.body(self._decode, self.cache, bucket, decode=True)
            keep = 0 if kind == "logits" else 1 if kind == "greedy" else int(kind.removeprefix("top"))
            launches += self.plan.head(self._decode, bucket, bucket, keep)
            if kind == "greedy":
                launches.append(self.plan.advance(self._decode, self.cache, bucket))
            elif keep:
                launches.append(self.plan.shortlist(self._decode, bucket, keep))
            recorded = self._recordings[kind, bucket] = self.launcher.record(launches)
        return recorded

    def _bucket(self, rows: int) -> int:
        """Row counts are rounded up to powers of two, so that few recordings serve all of them."""
        return min(1 << (rows - 1).bit_length(), self.cache.sequences)

    def _step(self, spans: Sequence[Span], size: int) -> npt.NDArray[np.int32]:
        """i32[size, 4] step buffer; rows past those of `spans` store nothing and attend to nothing."""
        step = np.zeros((size, STEP_FIELDS), np.int32)
        firsts, lanes, counts = np.array([(span.position, span.lane, len(span.tokens)) for span in spans]).T
        rows = int(counts.sum())
        positions = np.arange(rows) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        lanes = np.repeat(lanes, counts)
        tokens = chain.from_iterable(span.tokens for span in spans)
        step[:rows, 0] = np.frombuffer(struct.pack(f"{rows}i", *tokens), np.int32)  # as fast as it gets
        step[:rows, 1] = positions
        step[:rows, 2] = self.cache.slots(lanes, positions)
        step[:rows, 3] = lanes
        step[rows:, 1:3] = -1
        return step


def _same(logits: Logits) -> Logits:
    return logits
