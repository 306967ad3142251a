"""Prediction of when a request would end on a device, by which the device is chosen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet_core.engine.replicas.speed import DeviceSpeed

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_core.engine.request.request import Request

_KEPT = 0.95


class TextLength:
    """An estimate of the tokens that a request generates, as few requests use all of max_tokens."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def add(self, tokens: int) -> None:
        """Add the number of tokens of a finished text."""
        self._mean = tokens if self._mean is None else _KEPT * self._mean + (1 - _KEPT) * tokens

    def left(self, request: Request) -> float:
        """Return how many more tokens the request will probably generate, at least 1."""
        most = request.max_tokens if self._mean is None else min(self._mean, request.max_tokens)
        return max(1.0, most - request.generated_tokens)


@dataclass(frozen=True, slots=True)
class Work:
    """The pending work of a device. requests: number running or waiting there; slots: maximum number running at once;
    prompt_tokens: of requests without a first token; tokens: expected number that all of them will still generate."""

    requests: int
    slots: int
    prompt_tokens: float
    tokens: float

    def with_request(self, request: Request, usual: TextLength) -> Work:
        """Return the work with one more request."""
        prompts = self.prompt_tokens + len(request.tokens)
        return Work(self.requests + 1, self.slots, prompts, self.tokens + usual.left(request))


def work_of(requests: Collection[Request], slots: int, usual: TextLength) -> Work:
    """Sum up the requests of a device."""
    prompts = sum(len(request.tokens) for request in requests if not request.generated_tokens)
    return Work(len(requests), slots, prompts, sum(map(usual.left, requests)))


def end_seconds(speed: DeviceSpeed, work: Work, prompt_tokens: int, tokens: float) -> float:
    """Return the expected seconds until a new request ends on a device with this work.

    prompt_tokens: those to compute, without cached ones; tokens: expected number to generate. Without a free slot the
    request waits: with `slots` requests of equal length one ends every 2 * (mean of their tokens left) / slots steps.
    """
    step = speed.step_seconds(min(work.requests + 1, work.slots))
    seconds = speed.prompt_seconds(work.prompt_tokens + prompt_tokens) + tokens * step
    behind = work.requests - work.slots + 1
    if behind > 0:
        seconds += behind * 2 * work.tokens / work.requests / work.slots * step
    return seconds
