"""Carries out steps on one device: prompts by direct launches, decoding by replaying a recording per row count."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.sampling import not_a_number
from bitnet_core.hal.device import Device, SavingDevice
from bitnet_core.hal.pool import MemoryPool
from bitnet_core.kernels.catalogue import STEP_FIELDS
from bitnet_core.model.launch import Launch, Launcher, Recorded
from bitnet_core.model.plan import Plan
from bitnet_core.model.plan_scratch import HISTORY, Scratch, logit_rows
from bitnet_core.model.upload import DeviceWeights

_KEPT_SHAPES = 4
"""Prompt steps of equal row counts reuse their launches; those of this many row counts are kept."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence, to be computed; lane is the sequence's row of the block tables."""

    lane: int
    position: int  # of the first
    tokens: tuple[int, ...]


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
        self.plan = Plan(weights, launcher, kv_dtype)
        self.vocab = weights.config.vocab
        self.shortlists = "top_k" in device.info.kernels
        self._decode = Scratch(device, pool, weights.config, cache.sequences, cache.sequences)
        self._decode.upload("index", np.arange(cache.sequences, dtype=np.int32))
        self._prompt: Scratch | None = None
        self._bodies: OrderedDict[int, list[Launch] | Recorded] = OrderedDict()
        self._recordings: dict[tuple[str, int], Recorded] = {}
        self._resident: tuple[Span, ...] = ()  # what the decode step buffer holds, as of now
        self._history_used = HISTORY

    def forward(self, spans: Sequence[Span], wanted: Sequence[int], chunk: int) -> npt.NDArray[np.float32]:
        """Compute the rows of `spans`, at most `chunk`; f32[len(wanted), V] logits of the rows numbered `wanted`."""
        rows = sum(len(span.tokens) for span in spans)
        scratch = self._prompt_scratch(rows, chunk)
        scratch.upload("step", self._step(spans, rows))
        self._run_body(scratch, rows)
        out = np.empty((len(wanted), self.vocab), np.float32)
        for start in range(0, len(wanted), scratch.wanted):
            index = np.asarray(wanted[start : start + scratch.wanted], np.int32)
            scratch.upload("index", index)
            self.launcher.run(self.plan.head(scratch, rows, len(index)))
            scratch.download("logits", out[start : start + len(index)])
        return out

    def decode_greedy(self, rows: Sequence[Span], count: int) -> npt.NDArray[np.int32]:
        """i32[len(rows), count] greedy tokens that follow each row; count <= HISTORY. GpuError on NaN.

        Nothing is uploaded while the same rows go on; the device advances them by itself.
        """
        bucket = self._bucket(len(rows))
        recorded = self._recorded("greedy", bucket)
        if tuple(rows) != self._resident or self._history_used + count > HISTORY:
            self._decode.upload("step", self._step(rows, bucket))
            self._decode.upload("history", np.zeros((bucket, HISTORY + 1), np.int32))
            self._history_used = 0
        self._resident = ()
        self.launcher.replay(recorded, count)
        history = np.empty((bucket, HISTORY + 1), np.int32)
        self._decode.download("history", history)
        first = 1 + self._history_used
        tokens = history[: len(rows), first : first + count]
        if (tokens < 0).any() or (history[: len(rows), 0] != first - 1 + count).any():
            raise not_a_number()
        self._history_used += count
        self._resident = tuple(
            Span(row.lane, row.position + count, (token,))
            for row, token in zip(rows, tokens[:, -1].tolist(), strict=True)
        )
        return tokens

    def decode_logits(self, rows: Sequence[Span]) -> npt.NDArray[np.float32]:
        """f32[len(rows), V] logits of one step."""
        self._replay_uploaded("logits", rows)
        out = np.empty((len(rows), self.vocab), np.float32)
        self._decode.download("logits", out)
        return out

    def decode_shortlist(self, rows: Sequence[Span], k: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """(i32[len(rows), n], f32[len(rows), n]): the n >= k largest logits (or all), on devices with top_k;
        n is a power of two, so that few recordings serve every k."""
        k = min(1 << (k - 1).bit_length(), self.vocab)
        self._replay_uploaded(f"top{k}", rows)
        ids, values = np.empty((len(rows), k), np.int32), np.empty((len(rows), k), np.float32)
        self._decode.download("ids", ids)
        self._decode.download("values", values)
        return ids, values

    def recordings(self) -> dict[str, Recorded]:
        """The recordings there are, by what they do. Whoever replays one moves its rows on: only between texts."""
        self._resident = ()
        found = {f"{kind} decode, {bucket} rows": recorded for (kind, bucket), recorded in self._recordings.items()}
        prompts = {f"prompt, {rows} rows": body for rows, body in self._bodies.items() if isinstance(body, Recorded)}
        return found | prompts

    def saved_reads(self, rows: int) -> int:
        """Bytes of its operands that a greedy step of `rows` rows does not read, as far as the device tells."""
        if "saved-reads" not in self.device.info.features:
            return 0
        return cast(SavingDevice, self.device).saved_reads(self._recorded("greedy", self._bucket(rows)).recording)

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
            launches += self.plan.head(self._decode, bucket, bucket)
            if kind == "greedy":
                launches.append(self.plan.advance(self._decode, self.cache, bucket))
            elif kind != "logits":
                launches.append(self.plan.shortlist(self._decode, bucket, int(kind.removeprefix("top"))))
            recorded = self._recordings[kind, bucket] = self.launcher.record(launches)
        return recorded

    def _bucket(self, rows: int) -> int:
        """Row counts are rounded up to powers of two, so that few recordings serve all of them."""
        return min(1 << (rows - 1).bit_length(), self.cache.sequences)

    def _step(self, spans: Sequence[Span], size: int) -> npt.NDArray[np.int32]:
        """i32[size, 4] step buffer; rows past those of `spans` store nothing and attend to nothing."""
        step = np.zeros((size, STEP_FIELDS), np.int32)
        positions = np.array([at for s in spans for at in range(s.position, s.position + len(s.tokens))], np.int32)
        lanes = np.repeat([span.lane for span in spans], [len(span.tokens) for span in spans])
        rows = len(positions)
        step[:rows, 0] = [token for span in spans for token in span.tokens]
        step[:rows, 1] = positions
        step[:rows, 2] = self.cache.slots(lanes, positions)
        step[:rows, 3] = lanes
        step[rows:, 1:3] = -1
        return step
