"""Greedy decoding on the device: multi-step decoding, and steps queued ahead."""

from __future__ import annotations

import time
from collections.abc import Iterable

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.run.request_groups import RequestGroups
from bitnet_core.engine.sampling.sampler import not_a_number
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.results import RequestOutput, StepResults
from bitnet_core.engine.schedule.state_positions import keeps_answers, rows_to_block_end
from bitnet_core.engine.schedule.step_count import StepCountPolicy


class MultiStepScheduler:
    """Schedules steps in which every running request is greedy."""

    def __init__(self, admission: Admission, results: StepResults, stream_interval: float) -> None:
        self.step_count = StepCountPolicy(stream_interval)
        self._admission = admission
        self._results = results

    def restart(self, runner: Runner | RequestGroups) -> None:
        """Start with few steps again: blocks were reassigned and requests were admitted."""
        self.step_count.restart()
        runner.multi_step.forget()

    def queued(self, runner: Runner | RequestGroups) -> int:
        """Number of tokens per request that are in flight."""
        return runner.multi_step.queued(last_rows(self._admission.running)) if runner.multi_step.in_flight else 0

    def step(self, runner: Runner | RequestGroups, queued: int, most: float) -> list[RequestOutput]:
        """Decode tokens of every running request, all of them greedy. most: number of tokens of each after which draft
        tokens may be verified."""
        running = self._admission.running
        runs_ahead = self._runs_ahead(runner)
        count = queued or self._length(runs_ahead, most)
        self._admission.reserve(count)
        ahead, continuing = self._ahead(count, most - count) if runs_ahead else (0, [])
        began = time.perf_counter()
        tokens = runner.multi_step.decode(last_rows(running), count, ahead, last_rows(continuing) if ahead else ())
        self.step_count.update(count, time.perf_counter() - began)
        outputs: list[RequestOutput] = []
        for request, row in zip(running.copy(), tokens.tolist(), strict=True):
            outputs.append(self._take(request, count, row))
        return outputs

    def _take(self, request: Request, count: int, row: list[int]) -> RequestOutput:
        good = row[: row.index(-1)] if -1 in row else row
        output = self._results.accept_tokens(request, len(good), good)
        if len(good) < count and request.finish_reason is None:
            output = self._results.fail(request, not_a_number(), output.tokens)
        return output

    def _length(self, runs_ahead: bool, most: float) -> int:
        """Number of steps before the next read."""
        admission = self._admission
        tokens_left = int(min(most, *map(admission.tokens_left, admission.running)))
        if admission.recurrent and keeps_answers(admission.checkpoints, len(admission.running)):
            tokens_left = min(tokens_left, *map(rows_to_block_end, admission.running))
        return self.step_count.length(tokens_left, waiting=bool(admission.waiting), followed=runs_ahead)

    def _runs_ahead(self, runner: Runner | RequestGroups) -> bool:
        """Return True if further steps are queued before the last ones are read, so that the device never waits for
        the host. Not while requests wait for admission, and not in recurrent models, whose states cannot be rolled
        back."""
        return runner.multi_step.can_run_ahead and not self._admission.waiting and not self._admission.recurrent

    def _ahead(self, count: int, most: float) -> tuple[int, list[Request]]:
        """Number of tokens to queue after the next `count`, at most `most`, and for which requests."""
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


def last_rows(requests: Iterable[Request]) -> list[ScheduledTokens]:
    """Return the last row of each request: the one that decodes its next token."""
    rows: list[ScheduledTokens] = []
    for request in requests:
        rows.append(ScheduledTokens(request.req_index, request.computed, (request.tokens[request.computed],)))
    return rows
