"""Greedy decoding on the device: multi-step decoding, steps queued ahead, and speculative tokens."""

from __future__ import annotations

import time
from collections.abc import Iterable

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.request.sample_rows import SampleRow, order_rows
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.sampling.sampler import not_a_number
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.results import RequestOutput, StepResults
from bitnet_core.engine.schedule.step_count import StepCountPolicy
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.engine.speculative import DRAFT_TOKENS, AcceptanceStats
from bitnet_core.options.engine import AutoOnOff


class MultiStepScheduler:
    """Schedules steps in which every running request is greedy. prompt_lookup: as in EngineOptions; "off" if as many
    rows as a draft has are not batch-invariant on the device."""

    def __init__(
        self, admission: Admission, results: StepResults, counts: dict[str, int], stream_interval: float
    ) -> None:
        self.step_count = StepCountPolicy(stream_interval)
        self.prompt_lookup: AutoOnOff = "off"
        self.drafter: Drafter = PromptLookup()
        self._admission = admission
        self._results = results
        self._counts = counts
        self._acceptance = AcceptanceStats()

    def restart(self, runner: Runner) -> None:
        """Start with few steps again: blocks were reassigned and requests were admitted."""
        self.step_count.restart()
        runner.multi_step.forget()

    def queued(self, runner: Runner) -> int:
        """Number of tokens per request that are in flight."""
        return runner.multi_step.queued(last_rows(self._admission.running)) if runner.multi_step.in_flight else 0

    def step(self, runner: Runner, queued: int, chunk: int) -> list[RequestOutput]:
        """Decode tokens of every running request, all of them greedy. chunk: largest number of rows of a prompt
        step."""
        running = self._admission.running
        if not queued and (draft := self._draft(running[0], chunk)):
            return self._verify(runner, running[0], draft, chunk)
        runs_ahead = self._runs_ahead(runner)
        count = queued or self._length(runs_ahead)
        self._admission.reserve(count)
        ahead, continuing = self._ahead(count) if runs_ahead else (0, [])
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

    def _length(self, runs_ahead: bool) -> int:
        """Number of steps before the next read."""
        admission = self._admission
        tokens_left = min(map(admission.tokens_left, admission.running))
        return self.step_count.length(tokens_left, waiting=bool(admission.waiting), followed=runs_ahead)

    def _runs_ahead(self, runner: Runner) -> bool:
        """Return True if further steps are queued before the last ones are read, so that the device never waits for
        the host. Not while requests wait for admission, and not in recurrent models, whose states cannot be rolled
        back."""
        return runner.multi_step.can_run_ahead and not self._admission.waiting and not self._admission.recurrent

    def _ahead(self, count: int) -> tuple[int, list[Request]]:
        """Number of tokens to queue after the next `count`, and for which requests; none if a draft may replace
        them."""
        admission = self._admission
        tokens_left: dict[Request, int] = {}
        for request in admission.running:
            if (left := admission.tokens_left(request) - count) > 0:
                tokens_left[request] = left
        if not tokens_left or (len(tokens_left) == 1 and self._may_draft()):
            return 0, []
        ahead = self.step_count.ahead(count, min(tokens_left.values()))
        if not ahead or not admission.reserve_free(tokens_left, count + ahead):
            return 0, []
        return ahead, list(tokens_left)

    def _may_draft(self) -> bool:
        """Return True if it pays to look for draft tokens."""
        return self.prompt_lookup == "on" or (self.prompt_lookup == "auto" and self.step_count.slow)

    def _draft(self, request: Request, chunk: int) -> list[int]:
        """Draft tokens to verify; [] if that does not pay or would pass the end of the request or of the cache."""
        if not self._may_draft() or len(self._admission.running) > 1:  # rows of several requests keep the device busy
            return []
        if min(self._admission.tokens_left(request), chunk) <= DRAFT_TOKENS:
            return []
        draft = self.drafter.propose({request: DRAFT_TOKENS}).get(request, [])
        wanted = draft and (self.prompt_lookup == "on" or self._acceptance.worthwhile(self.step_count.token_seconds))
        return draft if wanted else []

    def _verify(self, runner: Runner, request: Request, draft: list[int], chunk: int) -> list[RequestOutput]:
        """Verify draft tokens in one step: keep the accepted ones and the token after them. Cache rows of rejected ones
        are overwritten."""
        self._admission.reserve(1 + len(draft))
        if request not in self._admission.running:  # it was preempted
            return []
        began = time.perf_counter()
        rows = [SampleRow(request) for _ in range(1 + len(draft))]
        span = ScheduledTokens(request.req_index, request.computed, (request.tokens[-1], *draft))
        ordered, logits_requests = order_rows(rows)
        steps = runner.prompt_step([span], range(len(rows)), logits_requests, chunk)
        for row, top_logits in zip(ordered, steps, strict=True):
            row.apply(top_logits)
        accepted = next((n for n, token in enumerate(draft) if rows[n].token != token), len(draft))
        tokens = [row.token for row in rows[: accepted + 1] if row.token is not None]
        self._acceptance.update(time.perf_counter() - began, len(tokens))
        self._counts["draft_tokens"] += len(draft)
        self._counts["accepted_tokens"] += accepted
        self.drafter.committed(request, 0, len(draft), accepted)
        output = self._results.accept_tokens(request, len(tokens), tokens)
        error = rows[accepted].error
        if error is not None and request.finish_reason is None:
            output = self._results.fail(request, error, output.tokens)
        return [output]


def last_rows(requests: Iterable[Request]) -> list[ScheduledTokens]:
    """Return the last row of each request: the one that decodes its next token."""
    rows: list[ScheduledTokens] = []
    for request in requests:
        rows.append(ScheduledTokens(request.req_index, request.computed, (request.tokens[request.computed],)))
    return rows
