"""Multi-step greedy decoding: the number of steps that run before the host reads their tokens, and of those queued
ahead of the next read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.request_groups import RequestGroups
from bitnet_core.engine.sampling.sampler import not_a_number
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.results import RequestOutput, StepResults
from bitnet_core.engine.schedule.state_positions import keeps_answers, rows_to_block_end

MAX_STEPS = 32
"""Maximum steps before the host reads tokens; the number doubles up to this, so that the first tokens arrive at
once."""

_WAITING_SECONDS = 0.02
"""Longest time in seconds between two reads while another request waits for admission."""

_SHARE = 10
_SHORT_SECONDS = 0.01
"""If two runs of steps are in flight, each gets 1 / _SHARE of the interval, because a new request waits for both, but
at least _SHORT_SECONDS, because the host needs about a millisecond for each."""


class MultiStepScheduler:
    """Schedules steps in which every running request is greedy."""

    def __init__(self, admission: Admission, results: StepResults, stream_interval: float) -> None:
        self.step_count = StepCountPolicy(stream_interval)
        self._admission = admission
        self._results = results

    def restart(self, runner: Runner | RequestGroups) -> None:
        """Start with few steps again, after blocks were reassigned or requests admitted."""
        self.step_count.last = 0
        runner.multi_step.forget()

    def queued(self, runner: Runner | RequestGroups) -> int:
        """Number of tokens per request that are in flight."""
        return runner.multi_step.queued(last_rows(self._admission.running))

    def step(
        self, runner: Runner | RequestGroups, requests: list[Request], queued: int, most: float
    ) -> list[RequestOutput]:
        """Decode tokens of all running requests, or of some for which blocks are reserved, all of them greedy.

        most: maximum tokens of each, because other work may be due then.

        Further steps are queued before the last ones are read, so that the device never waits for the host; but not
        while requests wait for admission, nor in recurrent models, whose states cannot be rolled back.
        """
        admission = self._admission
        runs_ahead = runner.multi_step.can_run_ahead and not admission.waiting and not admission.recurrent
        count = queued or self._length(runs_ahead, most)
        admission.reserve(count)
        ahead, continuing = self._ahead(count, most - count) if runs_ahead else (0, [])
        began = time.perf_counter()
        tokens = runner.multi_step.decode(last_rows(requests), count, ahead, last_rows(continuing) if ahead else ())
        self.step_count.update(count, time.perf_counter() - began)
        return self._accept(requests, tokens)

    def queue_one(self, runner: Runner, requests: list[Request]) -> Callable[[], list[RequestOutput]]:
        """Queue a step of greedy requests for which blocks are reserved, and return a function that waits for it.
        Prompt steps may be queued before it is called."""
        decoder = runner.multi_step
        buffer_rows, _ = decoder.take(last_rows(requests))
        first = decoder.prepare(buffer_rows.values(), 1)
        decoder.replay(1)
        steps = decoder.steps(first, 1)
        return lambda: self._accept(requests, decoder.read(buffer_rows, steps))

    def _accept(self, requests: list[Request], tokens: npt.NDArray[np.int32]) -> list[RequestOutput]:
        """Add the tokens i32[requests, steps] of MultiStepDecoder.decode."""
        count = tokens.shape[1]
        outputs: list[RequestOutput] = []
        for request, row in zip(requests.copy(), tokens.tolist(), strict=True):
            good = row[: row.index(-1)] if -1 in row else row
            output = RequestOutput(request, self._admission.accept_tokens(request, len(good), good))
            if len(good) < count and request.finish_reason is None:
                output = self._results.fail(request, not_a_number(), output.tokens)
            outputs.append(output)
        return outputs

    def _length(self, runs_ahead: bool, most: float) -> int:
        """Return the number of steps before the next read."""
        admission = self._admission
        tokens_left = int(min(most, *map(admission.tokens_left, admission.running)))
        if admission.recurrent and keeps_answers(admission.checkpoints, len(admission.running)):
            tokens_left = min(tokens_left, *map(rows_to_block_end, admission.running))
        return self.step_count.length(tokens_left, waiting=bool(admission.waiting), followed=runs_ahead)

    def _ahead(self, count: int, most: float) -> tuple[int, list[Request]]:
        """Return the number of tokens to queue after the next `count`, at most `most`, and their requests."""
        admission = self._admission
        tokens_left: dict[Request, int] = {}
        for request in admission.running:
            if (left := admission.tokens_left(request) - count) > 0:
                tokens_left[request] = left
        if not tokens_left or most < 1:
            return 0, []
        ahead = self.step_count.ahead(count, int(min(most, *tokens_left.values())))
        if not ahead or not admission.reserve_free(tokens_left, count + ahead):
            return 0, []
        return ahead, list(tokens_left)


class StepCountPolicy:
    """The choice of the number of steps per read. seconds: maximum interval between two reads, so that slow devices
    still stream text. token_seconds: duration of the last step; 0: unknown. last: the last number of steps; 0: start
    with one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.token_seconds = 0.0
        self.last = 0

    def update(self, count: int, seconds: float) -> None:
        """Record that `count` steps took this many seconds."""
        self.last = count
        self.token_seconds = seconds / count

    def length(self, tokens_left: int, *, waiting: bool, followed: bool) -> int:
        """Return the number of steps to run now, for requests that may all generate tokens_left more: it doubles up to
        the time budget. followed: further steps may be queued after these."""
        most = self._affordable(min(self.seconds, _WAITING_SECONDS) if waiting else self.seconds)
        return max(1, min(2 * self.last, (followed and self._short()) or most, tokens_left, MAX_STEPS))

    def ahead(self, count: int, tokens_left: int) -> int:
        """Return the number of steps to queue after the next `count`. tokens_left: after those."""
        return max(0, min(2 * count, self._short(), tokens_left))

    def _short(self) -> int:
        """Return the maximum steps of each run if two are in flight, so that both together take no longer than one
        alone; 0 if that is too short."""
        short = max(self.seconds / _SHARE, _SHORT_SECONDS)
        return min(self._affordable(self.seconds) // 2, max(1, self._affordable(short)), MAX_STEPS // 2)

    def _affordable(self, seconds: float) -> int:
        return int(seconds / self.token_seconds) if self.token_seconds else MAX_STEPS


def last_rows(requests: Iterable[Request]) -> list[ScheduledTokens]:
    """Return the last row of each request, from which its next token is decoded."""
    rows: list[ScheduledTokens] = []
    for request in requests:
        rows.append(ScheduledTokens(request.req_index, request.computed, (request.tokens[request.computed],)))
    return rows
