"""The choice of the number of draft tokens per request and step, from measured acceptance and measured costs.

A draft token at depth d of a request is accepted with probability p ** d, with p the request's acceptance. The policy
chooses the step that is expected to generate the most tokens per second; if that has no draft tokens, they do not pay.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from operator import itemgetter

from bitnet_hal.device import ANY_ROWS

from bitnet_core.engine.request.per_request import PerRequest
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.batch import padded_rows, verified_rows
from bitnet_core.engine.speculation.measurements import FIRST_DRAFT, MAX_DRAFT, Acceptance, StepCosts, interpolated
from bitnet_core.engine.speculation.report import report_nothing_right, report_pause

_FIRST_GUESS = 0.6
"""Acceptance that is assumed before any measurement; it counts as _GUESS_WEIGHT draft tokens."""
_GUESS_WEIGHT = 4
_KEPT = 0.98
"""Weight of earlier verifications of all requests against the next one."""

_PLAIN_RUN = 16
"""Number of consecutive steps without draft tokens that are measured together: the longer the run, the more of them the
device runs without the host."""

_MOST_RUNS = 32
"""Number of such runs that are kept until the next choice."""

_PLAIN_EVERY = 1024
"""Number of steps with draft tokens after which such a run is measured again, because costs change as texts grow."""

_FIRST_STEPS = 4
"""Steps with draft tokens from which on the next ones are chosen before the results of a step."""

_SLOW_SECONDS = 0.005
"""Duration of a token in seconds from which the cost of looking for a draft after each token is negligible."""

_NOTHING_RIGHT = 200
"""Number of draft tokens, none of them right, after which a warning is logged."""


class DraftPolicy:
    """The policy of one drafter on one device. counts: the counters to update."""

    def __init__(self, kind: str, counts: dict[str, int]) -> None:
        self.kind = kind
        self._counts = counts
        self._plain = StepCosts()  # of steps without draft tokens, by number of rows with padding
        self._plain_runs: deque[tuple[int, float]] = deque(maxlen=_MOST_RUNS)  # rows and seconds a step, to be added
        self._plain_sizes: set[int] = set()  # rows of steps without draft tokens so far
        self._verifying = StepCosts()  # of steps with draft tokens, by number of rows with padding
        self._drafting = StepCosts()  # of proposals, by the largest number of draft tokens of a request
        self._steps = 0  # with draft tokens, since the last measured run without
        self._plain_left = 1 + _PLAIN_RUN  # steps without draft tokens until the next one with
        self._run = (0, 0, 0.0)  # requests, steps and seconds of the current run without draft tokens
        self._follows = False  # the last step had draft tokens; else those of several texts take longer
        self._right = self._tried = 0.0
        self._states = PerRequest(self._unknown)
        self._warned = False
        self._probing = False  # draft tokens that are not expected to pay are tried
        self._ahead: tuple[list[Request], dict[Request, int]] = ([], {})  # the choice of choose_ahead, and its requests

    def limits(self, requests: Sequence[Request], most: Mapping[Request, int], rows: int) -> dict[Request, int]:
        """Return the number of draft tokens to propose, for the requests that should have any.

        requests: those of the step, each with one row. most: maximum draft tokens of each. rows: maximum rows of the
        step.
        """
        ahead = self._take_ahead(requests, most)
        if ahead and self._steps < _PLAIN_EVERY:
            return ahead
        due: dict[Request, int] = {}
        for request in requests:
            state = self._states[request]
            if most[request] > 0 and state.next <= len(request.tokens):
                due[request] = min(state.most, most[request])
        if not due or rows <= len(requests):
            return {}
        alone = _plain_rows(len(requests))
        if alone not in self._plain_seconds() or self._steps >= _PLAIN_EVERY:
            self._plain_left = _PLAIN_RUN + (alone not in self._plain_sizes)
            return {}
        chosen = self._best(due, len(requests), rows)
        self._probing = not chosen
        for request in chosen:
            self._states[request].resume()
        return chosen or self._probe(requests, due, most)

    def choose_ahead(self, requests: list[Request], rows: int) -> None:
        """Choose the draft tokens for the step after the present one of these requests, while the device computes it.
        `limits` uses them if the same requests run then. Not for one request, whose choice takes little time, and not
        in the first steps, whose results may well show that drafts do not pay."""
        self._ahead = ([], {})
        if len(requests) < 2 or self._steps < _FIRST_STEPS:
            return
        longest: dict[Request, int] = {}
        for request in requests:
            state = self._states[request]
            if state.paused or state.next > len(request.tokens):
                return
            longest[request] = min(2 * state.most, MAX_DRAFT)  # if the present draft is accepted
        if _plain_rows(len(requests)) in self._plain_seconds():
            self._ahead = (requests, self._best(longest, len(requests), rows))

    def _take_ahead(self, requests: Sequence[Request], most: Mapping[Request, int]) -> dict[Request, int]:
        """Return the choice of choose_ahead for these requests, as far as it is still possible; {} if there is none."""
        chosen_for, chosen = self._ahead
        self._ahead = ([], {})
        limits: dict[Request, int] = {}
        if chosen and chosen_for == requests:
            for request, count in chosen.items():
                if allowed := min(count, most[request], self._states[request].most):
                    limits[request] = allowed
        return limits

    def worthwhile(
        self, limits: Mapping[Request, int], drafts: dict[Request, list[int]], requests: int, rows: int
    ) -> dict[Request, list[int]]:
        """Return the draft tokens that are expected to pay, as not every request has as many as `limits` allows.
        requests: number of those of the step. rows: as in `limits`."""
        found = {request: len(draft) for request, draft in drafts.items()}
        measured = _plain_rows(requests) in self._plain_seconds()
        if not drafts or self._probing or found == limits or not measured:
            return drafts
        chosen = self._best(found, requests, rows)
        if not chosen:
            self._missed(drafts)
        return {request: drafts[request][:count] for request, count in chosen.items()}

    def _best(self, longest: Mapping[Request, int], count: int, rows: int) -> dict[Request, int]:
        """Return the numbers of draft tokens with the most expected tokens per second; {} for none. longest: maximum
        draft tokens of each request. count: number of requests of the step, which has at most `rows` rows.

        Padding fills a step up to a multiple of rows, so that only full steps are compared."""
        gains = self._gains(longest)[: rows - count]
        numbers: list[int] = []  # of draft tokens
        while not numbers or numbers[-1] < len(gains):
            first = 1 + (numbers[-1] if numbers else 0)
            numbers.append(min(verified_rows(count + first) - count, len(gains)))
        costs = self._costs(count, rows)
        drafting = self._drafting.measured or {1: 0.0}
        expected = list(accumulate(map(itemgetter(0), gains), initial=float(count)))
        deepest = list(accumulate(map(itemgetter(1), gains), max))
        verifying = interpolated(costs, [verified_rows(count + number) for number in numbers])
        proposing = interpolated(drafting, [deepest[number - 1] for number in numbers])
        speed, best = count / costs[count], 0
        for number, step_seconds, draft_seconds in zip(numbers, verifying, proposing, strict=True):
            if expected[number] > speed * (step_seconds + draft_seconds):
                speed, best = expected[number] / (step_seconds + draft_seconds), number
        return {request: depth for _, depth, request in gains[:best]}  # of a request, the deepest comes last

    def _costs(self, count: int, rows: int) -> dict[int, float]:
        """Return the seconds of steps by number of rows: those of `count` requests without draft tokens, the measured
        steps with some, and an optimistic estimate for the most rows, so that larger steps are tried."""
        alone = self._plain_seconds()[_plain_rows(count)]
        costs = {count: alone}
        verifying = self._verifying.hoped() if count > 1 else self._verifying.measured
        for size, seconds in verifying.items():
            if size > count:
                costs[size] = seconds
        largest = max(costs)
        most = verified_rows(rows)
        if count < largest < most:
            slope = max(0.0, costs[largest] - alone) / (largest - count)
            costs[most] = costs[largest] + (most - largest) * slope / 2
        return costs

    def _gains(self, longest: Mapping[Request, int]) -> list[tuple[float, int, Request]]:
        """Return (probability of acceptance, depth, request) of every possible draft token, the likeliest first."""
        prior = (self._right + _GUESS_WEIGHT * _FIRST_GUESS) / (self._tried + _GUESS_WEIGHT)
        gains: list[tuple[float, int, Request]] = []
        for request, most in longest.items():
            right = gain = self._states[request].probability(prior, alone=len(longest) == 1)
            for depth in range(1, most + 1):
                gains.append((gain, depth, request))
                gain *= right
        return sorted(gains, key=itemgetter(0), reverse=True)

    def _probe(
        self, requests: Sequence[Request], due: Mapping[Request, int], most: Mapping[Request, int]
    ) -> dict[Request, int]:
        """Pause the requests of a step for which no draft pays. If the pause of one is over, return one draft token for
        it, and for other paused ones in the rows that padding would waste."""
        ended = [request for request in due if self._states[request].paused]
        paused = [request for request in requests if most[request] > 0 and self._states[request].paused]
        for request in due:
            if request not in ended and most[request] >= FIRST_DRAFT:  # else it ends, which says nothing about drafts
                self._stop(request, self._states[request])
        if not ended:
            return {}
        free = verified_rows(1 + len(requests)) - len(requests)
        return dict.fromkeys(list(dict.fromkeys([*ended, *paused]))[:free], 1)

    def _stop(self, request: Request, state: Acceptance) -> None:
        """Pause a request's drafts, and log its first pause."""
        state.pause(len(request.tokens))
        if state.stopped:
            return
        state.stopped = True
        self._counts["draft_stops"] += 1
        report_pause(self.kind, request, self._counts)

    def until_next(self, requests: Sequence[Request], rows: int) -> float:
        """Return the number of tokens until one of these requests may have a draft; inf if none may."""
        if len(requests) >= rows:
            return math.inf
        waiting = math.inf
        for request in requests:
            waiting = min(waiting, self._states[request].next - len(request.tokens))
        return max(waiting, self._plain_left)

    def stepped(self, requests: int, seconds: float, steps: int) -> None:
        """Record steps without draft tokens. seconds: total duration."""
        self._plain_left = max(0, self._plain_left - steps)
        self._follows = False
        rows = _plain_rows(requests)
        if rows not in self._plain_sizes:
            self._plain_sizes.add(rows)
            self._plain_runs.append((rows, seconds / steps))
            return
        before, run_steps, run_seconds = self._run
        if rows == before:
            steps += run_steps
            seconds += run_seconds
        self._run = (rows, steps, seconds)
        if steps >= _PLAIN_RUN:
            self._plain_runs.append((rows, seconds / steps))
            self._run = (0, 0, 0.0)
            self._steps = 0

    def drafted_for(
        self, limits: Mapping[Request, int], drafts: Mapping[Request, Sequence[int]], seconds: float
    ) -> None:
        """Record proposals for these limits. seconds: total duration."""
        if self._follows:
            self._drafting.update(max(limits.values()), seconds)
        self._missed(limits.keys() - drafts.keys())

    def _missed(self, requests: Iterable[Request]) -> None:
        """Record searches of drafts for requests that then have none."""
        quick = min(self._plain_seconds().values(), default=0.0) < _SLOW_SECONDS
        for request in requests:
            self._states[request].missed(len(request.tokens), quick=quick)

    def verified(self, rows: int, seconds: float, results: Mapping[Request, tuple[int, int]]) -> None:
        """Record a step with draft tokens. rows: its row count, without padding; results: numbers of drafted and of
        accepted tokens."""
        counts = self._counts
        counts["draft_steps"] += 1
        self._steps += 1
        self._run = (0, 0, 0.0)
        if self._follows or len(results) == 1:
            self._verifying.update(verified_rows(rows), seconds)
        self._follows = True
        probed: list[Request] = []
        failed = False
        for request, (drafted, accepted) in results.items():
            state = self._states[request]
            state.verified(len(request.tokens), drafted, accepted)
            if state.paused:
                probed.append(request)
                failed = failed or accepted < drafted
            self._right = _KEPT * self._right + accepted
            self._tried = _KEPT * self._tried + accepted + (accepted < drafted)
            request.draft_tokens += drafted
            request.accepted_tokens += accepted
            counts["draft_tokens"] += drafted
            counts["accepted_tokens"] += accepted
        for request in probed if failed else ():  # together, so that their next trials share a step
            self._states[request].pause(len(request.tokens))
        tried = counts["draft_tokens"]
        if tried >= _NOTHING_RIGHT and not counts["accepted_tokens"] and not self._warned:
            self._warned = True
            report_nothing_right(self.kind, tried)

    def _plain_seconds(self) -> dict[int, float]:
        """Return the seconds of steps without draft tokens by number of rows, padding included."""
        while self._plain_runs:
            self._plain.update(*self._plain_runs.popleft())
        return self._plain.measured

    def _unknown(self, _: Request) -> Acceptance:
        """Return the state of a new request, whose first draft is short only if nothing is known of any."""
        return Acceptance(FIRST_DRAFT if self._tried < _GUESS_WEIGHT else MAX_DRAFT)


@cache
def _plain_rows(requests: int) -> int:
    """Return the rows, padding included, of a step without draft tokens."""
    return padded_rows(requests, ANY_ROWS)
