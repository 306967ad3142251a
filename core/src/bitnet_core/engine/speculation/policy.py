"""The choice of the number of draft tokens per request and step, from measured acceptance and measured costs.

A draft token at depth d of a request is accepted with probability p ** d, with p the request's acceptance. The policy
chooses the step that is expected to generate the most tokens per second; if that has no draft tokens, they do not pay.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add, itemgetter
from weakref import WeakKeyDictionary

import numpy as np

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.batch import verified_rows
from bitnet_core.engine.speculation.report import report_nothing_right, report_pause

MAX_DRAFT = 7
"""Largest number of draft tokens of a request in one step."""

FIRST_DRAFT = 2
"""Number of draft tokens of a request of which none has been accepted yet."""

_KEPT_OF_REQUEST = 0.95
"""Weight of earlier verifications of a request against the next one."""

_PRIOR_WEIGHT = 2
"""Number of draft tokens that the prior counts for."""

_FIRST_PAUSE, _LAST_PAUSE = 16, 256
"""Tokens until a draft is tried again after drafts did not pay; doubled each time. After the last, speculation is off
for the request."""

_MAX_WAIT = 32
"""Maximum tokens between two searches that find no draft."""

_LAST_STEPS = 9
"""Number of latest measurements per step size whose median counts."""

_FIRST_GUESS = 0.6
"""Acceptance that is assumed before any measurement; it counts as _GUESS_WEIGHT draft tokens."""
_GUESS_WEIGHT = 4
_KEPT = 0.98
"""Weight of earlier verifications of all requests against the next one."""

_PLAIN_RUN = 16
"""Number of consecutive steps without draft tokens that are measured together: the longer the run, the more of them the
device runs without the host."""

_PLAIN_EVERY = 1024
"""Number of steps with draft tokens after which such a run is measured again, because costs change as texts grow."""

_SLOW_SECONDS = 0.005
"""Duration of a token in seconds from which the cost of looking for a draft after each token is negligible."""

_NOTHING_RIGHT = 200
"""Number of draft tokens, none of them right, after which a warning is logged."""


class DraftPolicy:
    """The policy of one drafter on one device. counts: the counters to update."""

    def __init__(self, kind: str, counts: dict[str, int]) -> None:
        self.kind = kind
        self._counts = counts
        self._plain = StepCosts()  # of steps without draft tokens, by number of requests
        self._verifying = StepCosts()  # of steps with draft tokens, by number of rows with padding
        self._drafting = StepCosts()  # of proposals, by the largest number of draft tokens of a request
        self._steps = 0  # with draft tokens, since the last measured run without
        self._plain_left = 1 + _PLAIN_RUN  # steps without draft tokens until the next one with
        self._run = (0, 0, 0.0)  # requests, steps and seconds of the current run without draft tokens
        self._right = self._tried = 0.0
        self._states: WeakKeyDictionary[Request, Acceptance] = WeakKeyDictionary()
        self._warned = False

    def limits(self, requests: Sequence[Request], most: Mapping[Request, int], rows: int) -> dict[Request, int]:
        """Return the number of draft tokens to propose, for the requests that should have any.

        requests: those of the step, each with one row. most: maximum draft tokens of each. rows: maximum rows of the
        step.
        """
        spare = rows - len(requests)
        due: dict[Request, Acceptance] = {}
        for request in requests:
            state = self._state(request)
            if most[request] > 0 and state.wait(len(request.tokens)) <= 0:
                due[request] = state
        if not due or spare < 1:
            return {}
        if len(requests) not in self._plain.measured or self._steps >= _PLAIN_EVERY:
            self._plain_left = _PLAIN_RUN + self._plain.is_new(len(requests))
            return {}
        chosen = self._best(due, most, len(requests), spare)
        for request in chosen:
            due[request].resume()
        return chosen or self._probe(due, most)

    def _best(
        self, due: Mapping[Request, Acceptance], longest: Mapping[Request, int], count: int, spare: int
    ) -> dict[Request, int]:
        """Return the numbers of draft tokens with the most expected tokens per second; {} for none."""
        alone = self._plain.measured[count]
        costs = {count: alone}
        for size, mean in self._verifying.measured.items():
            if size > count:
                costs[size] = mean
        largest = max(costs)
        most = verified_rows(count + spare)
        if count < largest < most:  # not measured yet: estimate it optimistically, so that it is tried
            slope = max(0.0, costs[largest] - alone) / (largest - count)
            costs[most] = costs[largest] + (most - largest) * slope / 2
        drafting = self._drafting.measured or {1: 0.0}
        gains = self._gains(due, longest)[:spare]
        deepest = list(accumulate((depth for _, depth, _ in gains), max))
        sizes = [verified_rows(count + number) for number in range(1, 1 + len(gains))]
        verifying = interpolated(costs, sizes)
        tokens, speed, best = float(count), count / alone, 0
        seconds = map(add, verifying, interpolated(drafting, deepest))
        for number, ((gain, _, _), step_seconds) in enumerate(zip(gains, seconds, strict=True), 1):
            tokens += gain
            if tokens / step_seconds > speed:
                speed, best = tokens / step_seconds, number
        chosen: dict[Request, int] = {}
        for _, depth, request in gains[:best]:
            chosen[request] = max(depth, chosen.get(request, 0))
        return chosen

    def _gains(
        self, due: Mapping[Request, Acceptance], most: Mapping[Request, int]
    ) -> list[tuple[float, int, Request]]:
        """Return (probability of acceptance, depth, request) of every possible draft token, the likeliest first."""
        prior = (self._right + _GUESS_WEIGHT * _FIRST_GUESS) / (self._tried + _GUESS_WEIGHT)
        gains: list[tuple[float, int, Request]] = []
        for request, state in due.items():
            right = state.probability(prior)
            for depth in range(1, min(state.most, most[request]) + 1):
                gains.append((right**depth, depth, request))
        return sorted(gains, key=itemgetter(0), reverse=True)

    def _probe(self, due: Mapping[Request, Acceptance], most: Mapping[Request, int]) -> dict[Request, int]:
        """Pause the requests of a step for which no draft pays. Returns one draft token for one whose pause is over."""
        for request, state in due.items():
            if state.paused:
                return {request: 1}
            if most[request] >= FIRST_DRAFT:  # else the request is about to end, which says nothing about drafts
                self._stop(request, state)
        return {}

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
            waiting = min(waiting, self._state(request).wait(len(request.tokens)))
        return max(waiting, self._plain_left)

    def stepped(self, requests: int, seconds: float, steps: int) -> None:
        """Record steps without draft tokens. seconds: total duration."""
        self._plain_left = max(0, self._plain_left - steps)
        if self._plain.is_new(requests):
            self._plain.update(requests, seconds / steps)
            return
        before, run_steps, run_seconds = self._run
        if requests == before:
            steps += run_steps
            seconds += run_seconds
        self._run = (requests, steps, seconds)
        if steps >= _PLAIN_RUN:
            self._plain.update(requests, seconds / steps)
            self._run = (0, 0, 0.0)
            self._steps = 0

    def drafted_for(
        self, limits: Mapping[Request, int], drafts: Mapping[Request, Sequence[int]], seconds: float
    ) -> None:
        """Record proposals for these limits. seconds: total duration."""
        self._drafting.update(max(limits.values()), seconds)
        quick = min(self._plain.measured.values(), default=0.0) < _SLOW_SECONDS
        for request in limits.keys() - drafts.keys():
            self._state(request).missed(len(request.tokens), quick=quick)

    def verified(self, rows: int, seconds: float, results: Mapping[Request, tuple[int, int]]) -> None:
        """Record a step with draft tokens. rows: its row count, without padding; results: numbers of drafted and of
        accepted tokens."""
        counts = self._counts
        counts["draft_steps"] += 1
        self._steps += 1
        self._run = (0, 0, 0.0)
        self._verifying.update(verified_rows(rows), seconds)
        for request, (drafted, accepted) in results.items():
            self._state(request).verified(len(request.tokens), drafted, accepted)
            self._right = _KEPT * self._right + accepted
            self._tried = _KEPT * self._tried + accepted + (accepted < drafted)
            request.draft_tokens += drafted
            request.accepted_tokens += accepted
            counts["draft_tokens"] += drafted
            counts["accepted_tokens"] += accepted
        tried = counts["draft_tokens"]
        if tried >= _NOTHING_RIGHT and not counts["accepted_tokens"] and not self._warned:
            self._warned = True
            report_nothing_right(self.kind, tried)

    def _state(self, request: Request) -> Acceptance:
        found = self._states.get(request)
        if found is None:
            found = self._states[request] = Acceptance()
        return found


class Acceptance:
    """The share of a request's draft tokens that is accepted, and the position at which the next ones are tried.

    most: maximum draft tokens of the next try. paused: True if drafts did not pay; the next one is a probe. off: True
    if they are not tried any more. stopped: True after the first pause.
    """

    def __init__(self) -> None:
        self.most = FIRST_DRAFT
        self.paused = self.off = self.stopped = False
        self._right = self._tried = 0.0
        self._pause = _FIRST_PAUSE
        self._misses = 0
        self._next = 0  # number of the request's tokens from which a draft is tried

    def probability(self, prior: float) -> float:
        """Return the probability that a draft token is accepted if those before it are: one standard error above the
        estimate, because an estimate that is too low causes too few draft tokens to correct it."""
        tried = self._tried + _PRIOR_WEIGHT
        mean = (self._right + _PRIOR_WEIGHT * prior) / tried
        return min(1.0, mean + math.sqrt(mean * (1 - mean) / tried))

    def wait(self, tokens: int) -> float:
        """Return the number of tokens until the next try, inf if there is none. tokens: length of the request."""
        return math.inf if self.off else max(0, self._next - tokens)

    def verified(self, tokens: int, drafted: int, accepted: int) -> None:
        """Record a verification. tokens: length of the request after it."""
        self._right = _KEPT_OF_REQUEST * self._right + accepted
        self._tried = _KEPT_OF_REQUEST * self._tried + accepted + (accepted < drafted)
        self._misses = 0
        if accepted == drafted:
            self.most = min(2 * max(self.most, drafted), MAX_DRAFT)
            self._next = tokens
        elif self.paused:
            self.pause(tokens)

    def missed(self, tokens: int, *, quick: bool) -> None:
        """Record a search that found no draft. tokens: length of the request. quick: True if tokens take so little time
        that the next search is delayed, longer each time."""
        self._next = tokens + (min(1 << self._misses, _MAX_WAIT) if quick else 1)
        self._misses += 1

    def pause(self, tokens: int) -> None:
        """Stop trying drafts for some tokens, because they do not pay."""
        self.paused = True
        self.off = self._pause > _LAST_PAUSE
        self._next = tokens + self._pause
        self._pause *= 2
        self.most = FIRST_DRAFT

    def resume(self) -> None:
        """End the pause, because drafts pay again."""
        self.paused = False
        self._pause = _FIRST_PAUSE


class StepCosts:
    """Median seconds of steps by number of rows; other programs may delay single steps. The first measurement of a size
    is ignored, because it includes compilation and recording."""

    def __init__(self) -> None:
        self._last: dict[int, deque[float]] = {}
        self.measured: dict[int, float] = {}
        """The medians by number of rows."""

    def is_new(self, rows: int) -> bool:
        """Return True if this size has not been measured."""
        return rows not in self._last

    def update(self, rows: int, seconds: float) -> None:
        """Add a measurement."""
        last = self._last.get(rows)
        if last is None:
            self._last[rows] = deque(maxlen=_LAST_STEPS)
            return
        last.append(seconds)
        self.measured[rows] = statistics.median(last)


def interpolated(points: Mapping[int, float], rows: Sequence[int]) -> list[float]:
    """Return the seconds of steps of these numbers of rows by linear interpolation, outside of `points` those of the
    nearest point. There must be at least one point."""
    sizes = sorted(points)
    seconds: list[float] = np.interp(rows, sizes, [points[size] for size in sizes]).tolist()
    return seconds
