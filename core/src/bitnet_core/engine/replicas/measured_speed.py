"""The speed of an engine on its device, measured before and while it serves requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitnet_core.engine.replicas.speed import DeviceSpeed

if TYPE_CHECKING:  # slow imports: a server should listen before them
    from bitnet_core.engine.schedule.results import RequestOutput
    from bitnet_core.engine.serving import ServingEngine

_PROMPT, _TOKENS, _TOGETHER = 24, 6, 4
"""Tokens of a prompt and of an answer, and concurrent requests, in the first measurement. The tokens fill no cache
block, so no prefix is cached."""


class SpeedMeter:
    """The speed of an engine, updated from the durations of its steps."""

    def __init__(self) -> None:
        self.speed = DeviceSpeed()
        self._seen: tuple[float, float, int] = (0.0, 0.0, 0)

    def start(self, engine: ServingEngine, speed: DeviceSpeed) -> None:
        """Start from a measured speed; the steps so far are ignored."""
        self.speed = speed
        self._seen = _totals(engine)

    def learn(self, engine: ServingEngine, outputs: Sequence[RequestOutput]) -> None:
        """Update the speed with the duration of the last step, which returned these outputs."""
        prefill, decode, tokens = totals = _totals(engine)
        before = self._seen
        self._seen = totals
        if prefill > before[0]:
            self.speed.add_prompt(tokens - before[2], prefill - before[0])
        steps = max((len(output.tokens) for output in outputs), default=0)
        if decode > before[1] and steps:
            self.speed.add_step(len(outputs), (decode - before[1]) / steps)


def measured_speed(engine: ServingEngine) -> DeviceSpeed:
    """Measure the speed of prompts, and of steps of one and of several requests, in the engine's thread. The engine's
    counters and seconds are left unchanged."""
    scheduler = engine.scheduler
    counts, seconds = dict(scheduler.counts), dict(scheduler.seconds)
    meter = SpeedMeter()
    for run, requests in enumerate((1, _TOGETHER, 1, _TOGETHER)):  # the first two compile
        if run < 3:
            meter.speed = DeviceSpeed()
        prompts = [[(7 * at + token) % engine.config.tokens for token in range(_PROMPT)] for at in range(requests)]
        length = min(_PROMPT, engine.max_model_len - _TOKENS)
        for prompt in prompts[: engine.sequences]:
            engine.add_request(prompt[: max(1, length)], max_tokens=min(_TOKENS, engine.max_model_len - 1))
        meter.start(engine, meter.speed)
        while outputs := engine.step():
            meter.learn(engine, outputs)
    scheduler.counts.update(counts)
    scheduler.seconds.update(seconds)
    return meter.speed


def _totals(engine: ServingEngine) -> tuple[float, float, int]:
    """Return the total seconds of steps with prompts and without, and the number of computed prompt tokens."""
    scheduler = engine.scheduler
    computed = scheduler.counts["prompt_tokens"] - scheduler.counts["prefix_hits"]
    return scheduler.seconds["prefill"], scheduler.seconds["decode"], computed
