"""Steps with prompts: their rows, their size by the measured speed, and steps that are queued before the last is read.

The rows of a step do not depend on the tokens of the step before, as each request whose prompt has ended waits for its
first token. So the device need not wait for the host between two such steps. It works in queue order: blocks of a
queued step can be shared at once, and those of a request that ends meanwhile are only overwritten by later steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.request.sample_rows import SampleRow, order_rows
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.request_groups import RequestGroups
from bitnet_core.engine.sampling.logits import LogitsRequest, TopLogits
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.results import RequestOutput, StepResults
from bitnet_core.engine.schedule.state_positions import rows_to_checkpoint

SHARED_SECONDS = 0.04
"""Time limit in seconds of a step that also decodes, if it has more than _SHARED_ROWS rows, estimated from the speed of
the last large step. Also the seconds of prompt steps after which requests that decode in separate steps get one."""

_SHARED_ROWS = 1024
"""Rows that a step that also decodes may have on any device; more only within SHARED_SECONDS, because decoding requests
wait for the whole step."""

_SCORED_ROWS = 64
"""Rows of one request per step if all their logits are needed: these take host memory too."""

_IN_FLIGHT = 2
"""Maximum steps whose tokens are not read yet: the number of readbacks that a device may have pending."""

WAITED = 1e-4
"""Duration of a read in seconds from which it must have waited for the device, which then begins the next step."""


class PromptBatch(NamedTuple):
    """The rows of a step. taken: for each request its number of rows and the SampleRows whose logits are needed.
    ordered: the SampleRows of all requests in the order of the step; wanted: their row indices in the step."""

    spans: list[ScheduledTokens]
    taken: list[tuple[Request, int, list[SampleRow]]]
    ordered: list[SampleRow]
    wanted: list[int]
    logits_requests: list[LogitsRequest]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(count for _, count, _ in self.taken)


@dataclass(slots=True)
class StepInFlight:
    """A queued step with the last rows of prompts. owned: the block lists of its requests. began: time.perf_counter()
    when the device began it, None if unknown. read: waits for the logits."""

    batch: PromptBatch
    owned: list[list[int]]
    began: float | None
    read: Callable[[], Sequence[TopLogits]]

    def stands(self, row: int) -> bool:
        """Return whether the row is still valid: a request that was preempted since has other blocks."""
        return self.batch.ordered[row].request.blocks is self.owned[row]


class PromptScheduler:
    """Schedules steps with prompts. in_flight: queued steps whose tokens are not read, oldest first."""

    def __init__(self, admission: Admission, results: StepResults) -> None:
        self._admission = admission
        self._results = results
        self.in_flight: list[StepInFlight] = []
        self._rows_per_second = 0.0  # of the last step with _SHARED_ROWS rows or more; 0 before the first
        self._idle = True  # True if the device has ended the last step with prompts: its logits were read

    def awaited(self) -> bool:
        """Return whether first tokens of requests are in flight, and drop steps that no request waits for."""
        self.in_flight = [step for step in self.in_flight if any(map(step.stands, range(len(step.owned))))]
        return bool(self.in_flight)

    def forget(self) -> None:
        """Drop the steps in flight: the device or its cache is given up."""
        self.in_flight.clear()

    def step(self, runner: Runner | RequestGroups, requests: Sequence[Request], chunk: int) -> list[RequestOutput]:
        """Run one row of each decoding request, and as many prompt rows as `chunk` allows.

        If the device allows it, the first tokens of greedy requests are read after the next step was queued, by the
        next call of `step` or `read`. Outputs of requests without a token are added to StepResults.left.
        """
        follows = self.awaited()
        if len(self.in_flight) == _IN_FLIGHT:  # only after an error has interrupted the last read
            return self.read()
        batch = self._batch(requests, chunk)
        if not batch.ordered:
            self._results.left += self._run(runner, batch, chunk)
        elif isinstance(runner, Runner) and _reads_later(runner, batch):
            self._queue(runner, batch, chunk)
        else:
            return self.read() if follows else self._run(runner, batch, chunk)
        return self.read() if follows else []

    def read(self) -> list[RequestOutput]:
        """Wait for the first tokens of the requests whose prompts ended in the oldest step in flight."""
        step = self.in_flight[0]
        asked = time.perf_counter()
        logits = step.read()
        now = time.perf_counter()
        del self.in_flight[0]
        if step.began is not None:
            self._keep_speed(step.batch.rows, now - step.began)
        if self.in_flight and now - asked > WAITED:
            self.in_flight[0].began = now
        outputs: list[RequestOutput] = []
        for number, (row, top_logits) in enumerate(zip(step.batch.ordered, logits, strict=True)):
            if step.stands(number):
                row.apply(top_logits)
                outputs.append(self._results.process_rows(row.request, 0, [row]))
        return outputs

    def _batch(self, requests: Sequence[Request], chunk: int) -> PromptBatch:
        """Choose the rows of a step."""
        spans: list[ScheduledTokens] = []
        numbers: dict[SampleRow, int] = {}
        taken: list[tuple[Request, int, list[SampleRow]]] = []
        used = 0
        decoding = sum(request.pending <= 1 for request in self._admission.running)
        most = min(chunk, max(self._shared_rows(), decoding)) if decoding else chunk
        for request in sorted(requests, key=lambda s: s.pending > 1):
            count = min(request.pending, most - used, _SCORED_ROWS if request.scored else most)
            start = request.computed
            if self._admission.recurrent:
                count = rows_to_checkpoint(request, count, chunk)
            spans.append(ScheduledTokens(request.req_index, start, tuple(request.tokens[start : start + count])))
            rows = _rows_of(request, count)
            numbers.update({row: used + count - len(rows) + at for at, row in enumerate(rows)})
            taken.append((request, count, rows))
            used += count
        ordered, logits_requests = order_rows(list(numbers))
        return PromptBatch(spans, taken, ordered, [numbers[row] for row in ordered], logits_requests)

    def _run(self, runner: Runner | RequestGroups, batch: PromptBatch, chunk: int) -> list[RequestOutput]:
        """Run a step, and wait for it if logits are needed."""
        began = time.perf_counter()
        steps = runner.prompt_step(batch.spans, batch.wanted, batch.logits_requests, chunk)
        for row, top_logits in zip(batch.ordered, steps, strict=True):
            row.apply(top_logits)
        if batch.ordered and self._idle:
            self._keep_speed(batch.rows, time.perf_counter() - began)
        self._idle = bool(batch.ordered)
        return [self._results.process_rows(request, count, rows) for request, count, rows in batch.taken]

    def _queue(self, runner: Runner, batch: PromptBatch, chunk: int) -> None:
        """Queue a step whose tokens are read later."""
        began = time.perf_counter() if self._idle and not self.in_flight else None
        read = runner.queue_prompts(batch.spans, batch.wanted, batch.logits_requests, chunk)
        owned = [row.request.blocks for row in batch.ordered]
        self.in_flight.append(StepInFlight(batch, owned, began, read))
        self._idle = True  # holds once the step is read
        self._results.left += [self._results.process_rows(request, count, []) for request, count, _ in batch.taken]

    def _keep_speed(self, rows: int, seconds: float) -> None:
        """Store the speed of a step if it is large. An average since the start would include compilation."""
        if rows >= _SHARED_ROWS:
            self._rows_per_second = rows / seconds

    def _shared_rows(self) -> int:
        """Return the largest number of rows of a step that also decodes: a power of two, as steps of the same size are
        queued faster."""
        rows = int(SHARED_SECONDS * self._rows_per_second)
        return max(_SHARED_ROWS, 1 << rows.bit_length() >> 1)


def _reads_later(runner: Runner, batch: PromptBatch) -> bool:
    """Return whether all tokens of a step can be read after its logits were overwritten."""
    greedy = all(row.request.greedy and row.scored_at < 0 for row in batch.ordered)
    return greedy and runner.reads_later(len(batch.ordered))


def _rows_of(request: Request, count: int) -> list[SampleRow]:
    """Return those of the request's next `count` rows whose logits are needed: the last one of the prompt, or all if
    the request is scored."""
    done = 0 < count == request.pending
    chooses = done and request.max_tokens > 0
    if request.scored:
        at = request.computed
        return [SampleRow(request, at + n, chooses and n == count - 1) for n in range(count)]
    return [SampleRow(request)] if chooses else []
