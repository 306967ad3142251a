"""The choice of how many draft tokens of each request a step verifies, from measured acceptance and measured costs.

A draft token at depth d of a request is kept with probability p ** d, p the request's acceptance. The step that is
expected to generate the most tokens per second is chosen; if that is the step without draft tokens, they do not pay.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from weakref import WeakKeyDictionary

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.speculation.measurements import FIRST_DRAFT, Acceptance, StepCosts, interpolated

log = logging.getLogger(__name__)

_FIRST_GUESS = 0.6
"""Acceptance that is assumed before anything was measured; it counts as _GUESS_WEIGHT draft tokens."""
_GUESS_WEIGHT = 4
_KEPT = 0.98
"""Weight of earlier verifications of all requests against the next one."""

_PLAIN_RUN = 16
"""Number of consecutive steps without draft tokens that are measured together: the device runs some of them without the
host, more the longer the run."""

_PLAIN_EVERY = 1024
"""Number of steps with draft tokens after which such a run is measured again: costs change as texts grow."""

_SLOW_SECONDS = 0.005
"""From this duration of a token on, looking for a draft after each token costs little."""

_NOTHING_RIGHT = 200
"""Number of draft tokens, none of them right, after which a warning is logged."""

_LIKELY = {
    "lookup": "most likely the texts do not repeat their prompts or themselves",
    "draft": "most likely the draft model was trained on other data than the model, or one of the files is damaged",
    "mtp": "most likely the MTP head belongs to other weights than the model's",
}
"""The most likely reason, by kind, if no draft token is right."""


class DraftPolicy:
    """The policy of one drafter on one device. counts: the counters to update."""

    def __init__(self, kind: str, counts: dict[str, int]) -> None:
        self.kind = kind
        self._counts = counts
        self._plain = StepCosts()  # of steps without draft tokens, by number of requests
        self._verifying = StepCosts()  # of those with, by number of rows
        self._drafting = StepCosts()  # of proposals, by largest number of draft tokens of a request
        self._steps = 0  # that verified draft tokens, since the last measured run without
        self._plain_left = 1 + _PLAIN_RUN  # steps without draft tokens before the next with
        self._run = (0, 0, 0.0)  # requests, steps and seconds of the present run without
        self._right = self._tried = 0.0
        self._states: WeakKeyDictionary[Request, Acceptance] = WeakKeyDictionary()
        self._warned = False

    def limits(self, requests: Sequence[Request], most: Mapping[Request, int], rows: int) -> dict[Request, int]:
        """Return the number of draft tokens to ask for, of the requests that should have any.

        requests: those of the step, each with one row. most: largest number of draft tokens of each. rows: largest
        number of rows of the step.
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
        self, due: Mapping[Request, Acceptance], most: Mapping[Request, int], count: int, spare: int
    ) -> dict[Request, int]:
        """Return the numbers of draft tokens that are expected to generate the most tokens per second; {} for none."""
        alone = self._plain.measured[count]
        costs = {count: alone}
        for size, mean in self._verifying.measured.items():
            if size > count:
                costs[size] = mean
        largest = max(costs)
        if count < largest < count + spare:  # not tried yet, so rather more than the largest
            slope = max(0.0, costs[largest] - alone) / (largest - count)
            costs[count + spare] = costs[largest] + (count + spare - largest) * slope / 2
        drafting = self._drafting.measured or {1: 0.0}
        gains = self._gains(due, most)[:spare]
        tokens, speed, best = float(count), count / alone, 0
        deepest = 0
        for number, (gain, depth, _) in enumerate(gains, 1):
            tokens += gain
            deepest = max(deepest, depth)
            seconds = interpolated(costs, count + number) + interpolated(drafting, deepest)
            if tokens / seconds > speed:
                speed, best = tokens / seconds, number
        chosen: dict[Request, int] = {}
        for _, depth, request in gains[:best]:
            chosen[request] = max(depth, chosen.get(request, 0))
        return chosen

    def _gains(
        self, due: Mapping[Request, Acceptance], most: Mapping[Request, int]
    ) -> list[tuple[float, int, Request]]:
        """Return (probability that it is kept, depth, request) of every possible draft token, the likeliest first."""
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
            if most[request] >= FIRST_DRAFT:  # not merely at its end
                self._stop(request, state)
        return {}

    def _stop(self, request: Request, state: Acceptance) -> None:
        """Pause a request's drafts; log the first pause of a request, and only the first such request as news."""
        state.pause(len(request.tokens))
        if state.stopped:
            return
        state.stopped = True
        counts = self._counts
        counts["draft_stops"] += 1
        log.log(
            logging.INFO if counts["draft_stops"] == 1 else logging.DEBUG,
            "speculation (%s) does not pay for a text, so it is off, apart from rare trials: %d of its %d draft tokens "
            "were right, %d of %d in all texts",
            self.kind,
            request.accepted_tokens,
            request.draft_tokens,
            counts["accepted_tokens"],
            counts["draft_tokens"],
        )

    def until_next(self, requests: Sequence[Request], rows: int) -> float:
        """Return the number of tokens until one of these requests may have a draft; inf if none may."""
        if len(requests) >= rows:
            return math.inf
        waiting = math.inf
        for request in requests:
            waiting = min(waiting, self._state(request).wait(len(request.tokens)))
        return max(waiting, self._plain_left)

    def stepped(self, requests: int, seconds: float, steps: int) -> None:
        """Take steps without draft tokens, which took this many seconds together."""
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
        """Take the proposals for these limits, which took this many seconds."""
        self._drafting.update(max(limits.values()), seconds)
        quick = min(self._plain.measured.values(), default=0.0) < _SLOW_SECONDS
        for request in limits.keys() - drafts.keys():
            self._state(request).missed(len(request.tokens), quick=quick)

    def verified(self, rows: int, seconds: float, results: Mapping[Request, tuple[int, int]]) -> None:
        """Take a step of this many rows. results: numbers of drafted and of accepted tokens."""
        counts = self._counts
        counts["draft_steps"] += 1
        self._steps += 1
        self._run = (0, 0, 0.0)
        self._verifying.update(rows, seconds)
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
            log.warning("speculation (%s): 0 of %d draft tokens were right; %s", self.kind, tried, _LIKELY[self.kind])

    def _state(self, request: Request) -> Acceptance:
        found = self._states.get(request)
        if found is None:
            found = self._states[request] = Acceptance()
        return found
