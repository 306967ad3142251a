"""Benchmark speculation: the cost of verified rows, and the speed at given acceptance probabilities."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from bitnet_hal.errors import UsageError

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.run.batch import ScheduledTokens, verified_rows
from bitnet_core.engine.speculation.drafter import Drafter
from bitnet_core.engine.speculation.simulated import SimulatedDrafter
from bitnet_core.progress import Progress

_ROWS = (1, 2, 4, 8)
_WARM_UPS = 3
_TIMED = 9


@dataclass(frozen=True, slots=True)
class SpeculativeRun:
    """Medians over the runs. probability: of a right draft token; None for the real drafter. acceptance: share of the
    draft tokens that were accepted, None if there were none. tokens_per_step: of one request. speed: tokens per second
    of all requests. together: the same while all of them run, as some end before others."""

    probability: float | None
    acceptance: float | None
    tokens_per_step: float
    speed: float
    together: float


@dataclass(frozen=True, slots=True)
class SpeculationResult:
    """Speculation of one kind compared with none. row_seconds: duration of a step of one request by number of verified
    rows. plain_speed, plain_together: as in SpeculativeRun, without speculation."""

    kind: str
    sequences: int
    row_seconds: dict[int, float]
    plain_speed: float
    plain_together: float
    runs: tuple[SpeculativeRun, ...]

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A run. texts: by prompt; tokens, seconds: of the steps after all prompts; together: tokens per second of those
    while all requests run."""

    texts: dict[tuple[int, ...], list[int]]
    tokens: int
    steps: int
    seconds: float
    together: float
    drafted: int
    accepted: int

    @property
    def speed(self) -> float:
        """Tokens per second after all prompts."""
        return self.tokens / self.seconds


def measure_speculation(
    engine: Engine,
    probabilities: Sequence[float],
    *,
    prompt_tokens: int,
    max_tokens: int,
    repeat: int,
    sequences: int = 1,
    progress: Progress | None = None,
) -> SpeculationResult:
    """Decode the same greedy texts without speculation and with it, `repeat` times each after a warm-up.

    probabilities: of a right draft token, each measured with a drafter that knows the text; none: the real drafter.
    Raises UsageError if the engine does not speculate.
    """
    speculative = engine.scheduler.speculative
    drafter, rows = speculative.drafter, speculative.rows
    if drafter is None:
        reason = engine.speculation.off or "the option speculate is off"
        raise UsageError(f"speculation cannot be measured: {reason}")
    random = np.random.default_rng()  # unseeded, so that no prompt of an earlier measurement is in the prefix cache
    prompts = random.integers(0, engine.config.tokens, (sequences, prompt_tokens)).tolist()
    total = 1 + len(probabilities or [None])
    try:
        speculative.use(None, 0)
        record_steps(engine, rows)
        plain = _repeated(engine, prompts, max_tokens, repeat)
        runs: list[SpeculativeRun] = []
        for number, probability in enumerate(probabilities or [None]):
            if progress:
                progress("measuring speculation", 1 + number, total)
            used: Drafter = drafter
            if probability is not None:
                used = SimulatedDrafter(drafter, plain[0].texts, probability, engine.config.tokens)
            speculative.use(used, rows)
            runs.append(_summary(probability, _repeated(engine, prompts, max_tokens, repeat), sequences))
            speculative.use(None, 0)
        costs = row_costs(engine, prompt_tokens, rows)
    finally:
        speculative.use(drafter, rows)
    speed, together = _medians(plain)
    return SpeculationResult(drafter.kind, sequences, costs, speed, together, tuple(runs))


def record_steps(engine: Engine, rows: int) -> None:
    """Compile and record the steps of up to `rows` rows with draft tokens, so that no run that is timed does so. The
    engine must have no requests."""
    runner = engine.runner()
    most = min(rows, engine.max_model_len)
    with engine.scheduler.admission.borrow_index(most) as req_index:
        for size in sorted({verified_rows(number) for number in range(2, most + 1)}):
            runner.queue_greedy([ScheduledTokens(req_index, 0, (1,) * min(size, most))])()
            runner.keep_rows({req_index: 1})


def row_costs(engine: Engine, prompt_tokens: int, most: int) -> dict[int, float]:
    """Return the median seconds of a step that verifies 1, 2, 4 and 8 greedy rows of one request, up to `most`, after
    `prompt_tokens` tokens. The engine must have no requests."""
    runner = engine.runner()
    found: dict[int, float] = {}
    with engine.scheduler.admission.borrow_index(prompt_tokens + max(_ROWS)) as req_index:
        chunk = engine.scheduler.chunk
        for start in range(0, prompt_tokens, chunk):
            tokens = (1,) * min(chunk, prompt_tokens - start)
            list(runner.prompt_step([ScheduledTokens(req_index, start, tokens)], [], [], chunk))
        for rows in (rows for rows in _ROWS if rows <= most):
            span = ScheduledTokens(req_index, prompt_tokens, (1,) * rows)
            seconds = []
            for _ in range(_WARM_UPS + _TIMED):
                began = time.perf_counter()
                runner.queue_greedy([span])()
                seconds.append(time.perf_counter() - began)
            found[rows] = statistics.median(seconds[_WARM_UPS:])
    return found


def _repeated(engine: Engine, prompts: list[list[int]], max_tokens: int, repeat: int) -> list[_Timed]:
    """Run once to compile, record and measure the costs of steps, also with half of the texts and fewer, as some end
    before others; then `repeat` times. Returns the latter runs."""
    count = len(prompts)
    while count:
        _run(engine, prompts[:count], max_tokens)
        count //= 2
    return [_run(engine, prompts, max_tokens) for _ in range(repeat)]


def _run(engine: Engine, prompts: list[list[int]], max_tokens: int) -> _Timed:
    requests = [engine.add_request(prompt, max_tokens=max_tokens) for prompt in prompts]
    tokens = steps = 0
    seconds = together = 0.0
    ended = False
    while any(request.finish_reason is None for request in requests):
        decoding = all(request.generated_tokens for request in requests)
        before = _generated(requests)
        began = time.perf_counter()
        engine.step()
        if decoding:
            seconds += time.perf_counter() - began
            tokens += _generated(requests) - before
            steps += 1
        if not ended:
            ended = any(request.finish_reason for request in requests)
            together = tokens / seconds if seconds else 0.0
    texts = {tuple(prompt): request.generated for prompt, request in zip(prompts, requests, strict=True)}
    drafted, accepted = (sum(getattr(one, name) for one in requests) for name in ("draft_tokens", "accepted_tokens"))
    return _Timed(texts, tokens, steps, seconds, together, drafted, accepted)


def _generated(requests: list[Request]) -> int:
    return sum(request.generated_tokens for request in requests)


def _medians(runs: list[_Timed]) -> tuple[float, float]:
    """Return the medians of `speed` and of `together`."""
    return statistics.median(run.speed for run in runs), statistics.median(run.together for run in runs)


def _summary(probability: float | None, runs: list[_Timed], sequences: int) -> SpeculativeRun:
    drafted = sum(run.drafted for run in runs)
    steps = sum(run.steps for run in runs)
    speed, together = _medians(runs)
    return SpeculativeRun(
        probability=probability,
        acceptance=sum(run.accepted for run in runs) / drafted if drafted else None,
        tokens_per_step=sum(run.tokens for run in runs) / max(1, steps * sequences),
        speed=speed,
        together=together,
    )
