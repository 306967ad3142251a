"""The measured speed of a model on a device."""

from __future__ import annotations

_KEPT = 0.99
"""Factor by which each new measurement reduces the weight of the earlier ones."""

_MOST_LATE = 4.0
"""Limit of a step's duration relative to the expected one: the first step of a size compiles its kernels."""


class DeviceSpeed:
    """The speed of a device: seconds of a decode step by the number of its requests, and seconds of a prompt token.

    Steps are fitted as `fixed + each * requests` by weighted least squares: reading the weights takes the same time for
    one request as for many, the rest grows with them.
    """

    def __init__(self) -> None:
        self._weight = self._requests = self._squares = self._seconds = self._products = 0.0
        self._prompt_tokens = self._prompt_seconds = 0.0

    def add_step(self, requests: int, seconds: float) -> None:
        """Add the duration of a decode step. requests: number of its requests."""
        if self._weight:
            seconds = min(seconds, _MOST_LATE * self.step_seconds(requests))
        self._weight = _KEPT * self._weight + 1
        self._requests = _KEPT * self._requests + requests
        self._squares = _KEPT * self._squares + requests * requests
        self._seconds = _KEPT * self._seconds + seconds
        self._products = _KEPT * self._products + requests * seconds

    def add_prompt(self, tokens: int, seconds: float) -> None:
        """Add the duration of a step with prompts. tokens: number in the prompts that began in it."""
        self._prompt_tokens = _KEPT * self._prompt_tokens + tokens
        self._prompt_seconds = _KEPT * self._prompt_seconds + seconds

    def step_seconds(self, requests: int) -> float:
        """Return the expected seconds of a decode step with this number of requests, 0 before any measurement."""
        if not self._weight:
            return 0.0
        mean = self._requests / self._weight
        variance = self._squares / self._weight - mean * mean
        covariance = self._products / self._weight - mean * self._seconds / self._weight
        each = max(0.0, covariance / variance) if variance > 1e-3 else 0.0
        fixed = self._seconds / self._weight - each * mean
        if fixed < 0:
            fixed = 0.0
            each = self._products / self._squares
        return fixed + each * requests

    def prompt_seconds(self, tokens: float) -> float:
        """Return the expected seconds for this number of prompt tokens, 0 before any measurement."""
        return tokens * self._prompt_seconds / self._prompt_tokens if self._prompt_tokens else 0.0
