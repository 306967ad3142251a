"""Speculative steps: compute the last tokens of the running requests together with draft tokens, and keep those that
are accepted.

A draft token is accepted if the request's sampler chooses it from the logits of the row before it. So texts are the
same as without speculation, provided that a row's logits do not depend on the other rows of the step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby, islice
from typing import NamedTuple

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.request.sample_rows import SampleRow, order_rows
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.engine.sampling.constraint import Constraint, Mask, allows
from bitnet_core.engine.sampling.logits import TopLogits
from bitnet_core.engine.sampling.sampler import not_a_number
from bitnet_core.engine.schedule.admission import Admission
from bitnet_core.engine.schedule.results import RequestOutput, StepResults
from bitnet_core.engine.schedule.state_positions import rows_to_block_end
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.speculation.measurements import MAX_DRAFT
from bitnet_core.engine.speculation.policy import DraftPolicy


class Verified(NamedTuple):
    """The result of a request in a step with draft tokens. place: of its first row. accepted: number of draft
    tokens."""

    span: ScheduledTokens
    place: int
    output: RequestOutput
    accepted: int


class SpeculativeScheduler:
    """Schedules steps that verify draft tokens. drafter: None without speculation, when no method is called. rows:
    maximum rows of such a step. policy: that of the drafter."""

    def __init__(self, admission: Admission, results: StepResults, counts: dict[str, int]) -> None:
        self.drafter: Drafter | None = None
        self.rows = 0
        self.policy = DraftPolicy("off", counts)
        self._admission = admission
        self._results = results
        self._counts = counts

    def use(self, drafter: Drafter | None, rows: int) -> None:
        """Use a drafter; the measured costs and acceptance are kept if it is the current one."""
        if drafter is not self.drafter:
            self.policy = DraftPolicy(drafter.kind if drafter else "off", self._counts)
        self.drafter = drafter
        self.rows = rows

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
        return self._verify(runner, drafter, drafts, began + drafting) if drafts else None

    def _drafts(self, drafter: Drafter) -> tuple[dict[Request, list[int]], float]:
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
        for request, count in list(limits.items()):
            if not admission.reserve_free([request], 1 + count):
                del limits[request]
        if not limits:
            return {}, 0.0
        began = time.perf_counter()
        drafts = drafter.propose(limits)
        seconds = time.perf_counter() - began
        self.policy.drafted_for(limits, drafts, seconds)
        return self.policy.worthwhile(limits, drafts, len(running), self.rows), seconds

    def _verify(
        self, runner: Runner, drafter: Drafter, drafts: dict[Request, list[int]], began: float
    ) -> list[RequestOutput]:
        """Verify draft tokens. began: time.perf_counter() at the start of the step, after drafting."""
        running = self._admission.running.copy()
        verify = self._greedy if all(request.greedy for request in running) else self._sampled
        verified = verify(runner, running, drafts)
        results: dict[Request, tuple[int, int]] = {}
        kept: dict[int, int] = {}
        for request, (span, _, _, accepted) in zip(running, verified, strict=True):
            if request in drafts:
                results[request] = (len(drafts[request]), accepted)
            if request.finish_reason is None:
                kept[span.req_index] = 1 + accepted
        runner.keep_rows(kept)
        rows = sum(len(one.span.tokens) for one in verified)
        self.policy.verified(rows, time.perf_counter() - began, results)
        for request, one in zip(running, verified, strict=True):
            if request in drafts:
                drafter.committed(request, one.place, len(drafts[request]), one.accepted)
        return [one.output for one in verified]

    def _greedy(self, runner: Runner, running: list[Request], drafts: dict[Request, list[int]]) -> list[Verified]:
        """Verify draft tokens of greedy requests; the device chooses the token of each row."""
        spans: list[ScheduledTokens] = []
        for request in running:
            tokens = (request.tokens[-1], *drafts.get(request, ()))
            spans.append(ScheduledTokens(request.req_index, request.computed, tokens))
        read = runner.queue_greedy(spans)
        self.policy.choose_ahead(running, self.rows)
        chosen = read()
        verified: list[Verified] = []
        place = 0
        for request, span in zip(running, spans, strict=True):
            output, accepted = self._accept_greedy(request, span.tokens[1:], chosen[place:])
            verified.append(Verified(span, place, output, accepted))
            place += len(span.tokens)
        return verified

    def _accept_greedy(
        self, request: Request, draft: Sequence[int], chosen: Sequence[int]
    ) -> tuple[RequestOutput, int]:
        """Append the accepted draft tokens and the one after them. chosen: the greedy token of each row."""
        accepted = 0
        while accepted < len(draft) and chosen[accepted] == draft[accepted]:
            accepted += 1
        tokens = list(chosen[: accepted + (chosen[accepted] >= 0)])
        output = RequestOutput(request, self._admission.accept_tokens(request, len(tokens), tokens))
        if chosen[accepted] < 0 and request.finish_reason is None:
            output = self._results.fail(request, not_a_number(), output.tokens)
        return output, min(accepted, len(output.tokens))

    def _sampled(self, runner: Runner, running: list[Request], drafts: dict[Request, list[int]]) -> list[Verified]:
        """Verify draft tokens by sampling from the logits of their rows."""
        rows = {request: _rows_of(request, drafts.get(request, [])) for request in running}
        ordered, logits_requests = order_rows([row for some in rows.values() for row in some])
        places = {row: place for place, row in enumerate(ordered)}
        spans = {span.req_index: span for span in _spans(ordered, drafts)}
        logits = dict(zip(ordered, runner.verify_step(list(spans.values()), logits_requests), strict=True))
        verified: list[Verified] = []
        for request in running:
            span = spans[request.req_index]
            output, accepted = self._accept(request, rows[request], drafts.get(request, []), logits)
            verified.append(Verified(span, places[rows[request][0]], output, accepted))
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


def _rows_of(request: Request, draft: Sequence[int]) -> list[SampleRow]:
    """Return the row of the request's last token and one per draft token, up to a token that the request's constraint
    forbids or that ends the request."""
    rows = [SampleRow(request)]
    if request.constraint is None:
        return rows + [SampleRow(request, drafted=number) for number in range(1, len(draft) + 1)]
    mask = rows[0].mask()
    if rows[0].error is not None:
        return rows
    for number, following in enumerate(_masks_after(request.constraint, mask, draft), 1):
        rows.append(SampleRow(request, drafted=number, given_mask=following))
    return rows


def _masks_after(constraint: Constraint, mask: Mask, draft: Sequence[int]) -> list[Mask]:
    """Return the constraint's mask after each draft token. mask: the current one. The list ends before a token that is
    forbidden, or after which the constraint allows no further token or fails."""
    masks: list[Mask] = []
    try:
        ahead = constraint.copy()
        for token in draft:
            if not allows(mask, token) or not ahead.accept(token):
                break
            mask = ahead.mask()
            masks.append(mask)
    except Exception:  # noqa: BLE001 - if the tokens are sampled, it fails again and ends the request
        pass
    return masks


def _spans(rows: Sequence[SampleRow], drafts: dict[Request, list[int]]) -> list[ScheduledTokens]:
    """Return the tokens to compute. rows: in the order of the step, those of a request together."""
    spans: list[ScheduledTokens] = []
    for request, group in groupby(rows, key=lambda row: row.request):
        count = sum(1 for _ in group) - 1
        tokens = (request.tokens[-1], *drafts.get(request, [])[:count])
        spans.append(ScheduledTokens(request.req_index, request.computed, tokens))
    return spans
