"""Speculative steps: compute the last tokens of the running requests together with draft tokens, and keep those that
are accepted.

A draft token is accepted if the request's sampler chooses it from the logits of the row before it. So texts are the
same as without speculation, provided that a row's logits do not depend on the other rows of the step.

If all requests are greedy, the next step is queued as soon as the tokens of one are accepted, before its outputs are
returned: the device computes it while the host works on these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.request.sample_rows import SampleRow, order_rows
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.sampling.logits import TopLogits
from bitnet_core.engine.sampling.sampler import not_a_number
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.draft_rows import draft_rows, draft_spans
from bitnet_core.engine.schedule.prompt_steps import WAITED
from bitnet_core.engine.schedule.results import RequestOutput, StepResults
from bitnet_core.engine.schedule.state_positions import rows_to_block_end
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.speculation.measurements import MAX_DRAFT
from bitnet_core.engine.speculation.policy import DraftPolicy

Drafts = dict[Request, list[int]]
"""The draft tokens of the requests that have any."""


class Verified(NamedTuple):
    """The result of a request in a step with draft tokens. place: of its first row. accepted: number of draft
    tokens."""

    request: Request
    span: ScheduledTokens
    place: int
    output: RequestOutput
    accepted: int


@dataclass(slots=True)
class VerificationInFlight:
    """A queued step with draft tokens of greedy requests. spans, owned: the rows and the block list of each request.
    began, queued: time.perf_counter() after drafting, and after the step was queued. read: waits for the greedy token
    of each row."""

    requests: list[Request]
    drafts: Drafts
    spans: list[ScheduledTokens]
    owned: list[list[int]]
    began: float
    queued: float
    read: Callable[[], list[int]]

    def stands(self, number: int) -> bool:
        """Return whether a request still runs: one that has ended or was preempted has other blocks."""
        return self.requests[number].blocks is self.owned[number]


class SpeculativeScheduler:
    """Schedules steps that verify draft tokens. drafter: None without speculation, when no method is called. rows:
    maximum rows of such a step. policy: that of the drafter. in_flight: a queued step whose tokens are not read."""

    def __init__(self, admission: Admission, results: StepResults, counts: dict[str, int]) -> None:
        self.drafter: Drafter | None = None
        self.rows = 0
        self.policy = DraftPolicy("off", counts)
        self.in_flight: VerificationInFlight | None = None
        self._admission = admission
        self._results = results
        self._counts = counts

    def use(self, drafter: Drafter | None, rows: int) -> None:
        """Use a drafter; the measured costs and acceptance are kept if it is the current one."""
        if drafter is not self.drafter:
            self.policy = DraftPolicy(drafter.kind if drafter else "off", self._counts)
        self.drafter = drafter
        self.rows = rows
        self.in_flight = None

    def awaited(self) -> bool:
        """Return whether a request waits for the step in flight, and drop the step if none does."""
        step = self.in_flight
        if step is not None and not any(map(step.stands, range(len(step.requests)))):
            self.in_flight = None
        return self.in_flight is not None

    def stepped(self, outputs: Sequence[RequestOutput], seconds: float) -> None:
        """Pass the duration of steps without draft tokens to the policy."""
        steps = 0
        for output in outputs:
            steps = max(steps, len(output.tokens))
        if steps:
            self.policy.stepped(len(outputs), seconds, steps)

    def step(self, runner: Runner, drafter: Drafter) -> list[RequestOutput] | None:
        """Verify draft tokens in one step with a row of every other running request; to be called when
        `policy.until_next` is 0. Returns None if no draft is expected to pay."""
        began = time.perf_counter()
        self._admission.reserve(1)
        drafts, drafting = self._drafts(drafter)
        if not drafts:
            return None
        began += drafting
        if all(request.greedy for request in self._admission.running):
            self.in_flight = self._queue(runner, drafts, began)
            return self.read(runner, drafter)
        verified = self._sampled(runner, drafts)
        self._keep(runner, drafter, drafts, verified)
        rows = sum(len(one.span.tokens) for one in verified)
        self._learn(rows, time.perf_counter() - began, drafts, verified)
        return [one.output for one in verified]

    def read(self, runner: Runner, drafter: Drafter) -> list[RequestOutput]:
        """Wait for the step in flight, and queue the next one if its drafts are expected to pay."""
        step, self.in_flight = self.in_flight, None
        assert step is not None
        self.policy.choose_ahead(step.requests, self.rows)
        asked = time.perf_counter()
        chosen = step.read()
        read = time.perf_counter()
        verified: list[Verified] = []
        place = 0
        for number, (request, span) in enumerate(zip(step.requests, step.spans, strict=True)):
            if step.stands(number):
                output, accepted = self._accept_greedy(request, span.tokens, chosen, place)
                verified.append(Verified(request, span, place, output, accepted))
            place += len(span.tokens)
        outputs = [one.output for one in verified]
        try:
            self._keep(runner, drafter, step.drafts, verified)
            self._queue_next(runner, drafter, read)
        except Exception:
            self._results.left += outputs  # their tokens are part of the requests
            raise
        # The device may have been done long before, unless the host waited for it.
        idle = asked - step.queued if read - asked < WAITED else 0.0
        self._learn(place, read - step.began - idle, step.drafts, verified)
        return outputs

    def _queue_next(self, runner: Runner, drafter: Drafter, began: float) -> None:
        """Queue a step after that whose tokens were accepted last, if it can have draft tokens. began: as in
        VerificationInFlight, before drafting."""
        admission = self._admission
        if admission.waiting or admission.recurrent or not admission.running or not runner.multi_step.can_run_ahead:
            return
        if self.policy.until_next(admission.running, self.rows) > 0:
            return
        admission.reserve(1)
        drafts, drafting = self._drafts(drafter)
        if drafts:
            self.in_flight = self._queue(runner, drafts, began + drafting)

    def _drafts(self, drafter: Drafter) -> tuple[Drafts, float]:
        """Return the draft tokens to verify, and the seconds that drafting took. Their blocks preempt no request."""
        admission = self._admission
        running = admission.running
        most: dict[Request, int] = {}
        for request in running:
            left = admission.tokens_left(request)
            if admission.recurrent:  # a step may end at the end of a block, at which states are kept
                left = min(left, rows_to_block_end(request))
            most[request] = min(left - 1, MAX_DRAFT)
        limits = self.policy.limits(running, most, self.rows)
        if admission.recurrent:
            limits = dict(islice(limits.items(), admission.spare_states))
        if not limits:
            return {}, 0.0
        if not admission.reserve_free(limits, 1 + max(limits.values())):
            limits = {one: count for one, count in limits.items() if admission.reserve_free([one], 1 + count)}
            if not limits:
                return {}, 0.0
        began = time.perf_counter()
        drafts = drafter.propose(limits)
        seconds = time.perf_counter() - began
        self.policy.drafted_for(limits, drafts, seconds)
        return self.policy.worthwhile(limits, drafts, len(running), self.rows), seconds

    def _queue(self, runner: Runner, drafts: Drafts, began: float) -> VerificationInFlight:
        """Queue a step of greedy requests, whose tokens the device chooses. began: as in VerificationInFlight."""
        requests = self._admission.running.copy()
        spans: list[ScheduledTokens] = []
        owned: list[list[int]] = []
        for request in requests:
            tokens = (request.tokens[-1], *drafts.get(request, ()))
            spans.append(ScheduledTokens(request.req_index, request.computed, tokens))
            owned.append(request.blocks)
        read = runner.queue_greedy(spans)
        return VerificationInFlight(requests, drafts, spans, owned, began, time.perf_counter(), read)

    def _keep(self, runner: Runner, drafter: Drafter, drafts: Drafts, verified: Sequence[Verified]) -> None:
        """Keep the accepted rows of a step in the states of the layers and of the drafter."""
        kept: dict[int, int] = {}
        for one in verified:
            if one.request.finish_reason is None:
                kept[one.span.req_index] = 1 + one.accepted
        runner.keep_rows(kept)
        for one in verified:
            if one.request in drafts:
                drafter.committed(one.request, one.place, len(drafts[one.request]), one.accepted)

    def _learn(self, rows: int, seconds: float, drafts: Drafts, verified: Sequence[Verified]) -> None:
        """Pass the rows, the duration and the results of a step to the policy."""
        results: dict[Request, tuple[int, int]] = {}
        for one in verified:
            if one.request in drafts:
                results[one.request] = (len(drafts[one.request]), one.accepted)
        self.policy.verified(rows, seconds, results)

    def _accept_greedy(
        self, request: Request, computed: Sequence[int], chosen: list[int], place: int
    ) -> tuple[RequestOutput, int]:
        """Append the accepted draft tokens and the one after them. computed: the request's last token and its draft
        tokens; chosen: the greedy token of each row of the step; place: of its first one."""
        accepted = 0
        while accepted + 1 < len(computed) and chosen[place + accepted] == computed[accepted + 1]:
            accepted += 1
        last = place + accepted
        failed = chosen[last] < 0
        tokens = chosen[place : last + (not failed)]
        output = RequestOutput(request, self._admission.accept_tokens(request, len(tokens), tokens))
        if failed and request.finish_reason is None:
            output = self._results.fail(request, not_a_number(), output.tokens)
        return output, min(accepted, len(output.tokens))

    def _sampled(self, runner: Runner, drafts: Drafts) -> list[Verified]:
        """Verify draft tokens by sampling from the logits of their rows."""
        running = self._admission.running.copy()
        rows = {request: draft_rows(request, drafts.get(request, [])) for request in running}
        ordered, logits_requests = order_rows([row for some in rows.values() for row in some])
        places = {row: place for place, row in enumerate(ordered)}
        spans = {span.req_index: span for span in draft_spans(ordered, drafts)}
        logits = dict(zip(ordered, runner.verify_step(list(spans.values()), logits_requests), strict=True))
        verified: list[Verified] = []
        for request in running:
            span = spans[request.req_index]
            output, accepted = self._accept(request, rows[request], drafts.get(request, []), logits)
            verified.append(Verified(request, span, places[rows[request][0]], output, accepted))
        return verified

    def _accept(
        self, request: Request, rows: Sequence[SampleRow], draft: Sequence[int], logits: dict[SampleRow, TopLogits]
    ) -> tuple[RequestOutput, int]:
        """Sample from the rows one by one, until a token differs from the draft or the request ends. Returns the tokens
        and the number of accepted draft tokens. Cache rows of rejected ones are overwritten later."""
        tokens: list[int] = []
        accepted = 0
        for number, row in enumerate(rows):
            row.apply(logits[row])
            tokens += self._results.process_rows(request, 1, [row]).tokens
            right = number < len(draft) and row.token == draft[number]
            accepted += right
            if not right or request.finish_reason is not None:
                break
        return RequestOutput(request, tuple(tokens)), accepted
