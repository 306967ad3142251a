"""The share of a request's draft tokens that is accepted, and the pauses of a request whose drafts do not pay."""

from __future__ import annotations

import math

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

    def probability(self, prior: float, requests: int = 1) -> float:
        """Return the probability that a draft token is accepted if those before it are: one standard error above the
        estimate, because an estimate that is too low causes too few draft tokens to correct it. requests: number of
        those that share the choice, whose errors compensate each other."""
        tried = self._tried + _PRIOR_WEIGHT
        mean = (self._right + _PRIOR_WEIGHT * prior) / tried
        return min(1.0, mean + math.sqrt(mean * (1 - mean) / (tried * requests)))

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
