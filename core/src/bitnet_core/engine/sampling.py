"""From logits to a token: greedy or random, on the host."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import GpuError, UsageError
from bitnet_core.model.plan_scratch import SHORTLIST


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Filters apply in this order: repetition penalty, logit bias, temperature, top-k, top-p,
    min-p, each on what the one before left (as in the transformers library).

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch those filters off; seed None draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        checks = {
            "temperature must be 0 or more": 0 <= self.temperature < float("inf"),
            "top_k must be 0 or more": self.top_k >= 0,
            "top_p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min_p must be from 0 to 1": 0 <= self.min_p <= 1,
            "repetition_penalty must be from 0.01 to 100": 0.01 <= self.repetition_penalty <= 100,
            "logit_bias values must be numbers": all(value < float("inf") for value in self.logit_bias.values()),
            "seed must be 0 or more": self.seed is None or self.seed >= 0,
        }
        for message, holds in checks.items():
            if not holds:
                raise UsageError(message)

    @property
    def raw(self) -> bool:
        """Logits are used as the model gives them."""
        return self.repetition_penalty == 1.0 and not self.logit_bias

    @property
    def greedy(self) -> bool:
        """The device can choose alone: the largest raw logit."""
        return self.temperature == 0 and self.raw

    @property
    def shortlist(self) -> int:
        """How many of the largest logits suffice to choose; 0 = all are needed."""
        return self.top_k if self.raw and self.temperature > 0 and 0 < self.top_k <= SHORTLIST else 0


class Sampler:
    """Chooses the tokens of one sequence with a generator of its own, so that its neighbours do not matter."""

    def __init__(self, params: SamplingParams, vocab: int) -> None:
        if any(not 0 <= token < vocab for token in params.logit_bias):
            raise UsageError(f"logit_bias names a token outside 0..{vocab - 1}")
        self.params = params
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    def choose(self, logits: npt.NDArray[np.float32], seen: Iterable[int]) -> int:
        """Token for f32[V] logits; `seen` are the tokens so far, for the penalty. GpuError on NaN and Inf."""
        _check(logits)
        params = self.params
        if not params.raw:
            logits = self._adjusted(logits, seen)
        if params.temperature == 0:
            return int(np.argmax(logits))
        ids = _largest(logits, params.top_k or (len(logits) if params.top_p < 1 else 0))
        return self._draw(ids, logits[ids]) if ids is not None else self._draw(None, logits)

    def choose_short(self, ids: npt.NDArray[np.int32], values: npt.NDArray[np.float32]) -> int:
        """Token for the largest logits in falling order, equal ones by rising index: top_k of them or more."""
        _check(values)
        keep = self.params.top_k
        return self._draw(ids[:keep], values[:keep])

    def _adjusted(self, logits: npt.NDArray[np.float32], seen: Iterable[int]) -> npt.NDArray[np.float32]:
        """CTRL's penalty (Keskar et al. 2019): seen tokens' logits are divided, or multiplied where negative."""
        out = logits.copy()
        ids = np.unique(np.fromiter(seen, np.int64))
        penalty = np.float32(self.params.repetition_penalty)
        out[ids] = np.where(out[ids] > 0, out[ids] / penalty, out[ids] * penalty)
        for token, bias in self.params.logit_bias.items():
            out[token] += np.float32(bias)
        if np.isneginf(out).all():
            raise UsageError("logit_bias forbids every token")
        return out

    def _draw(self, ids: npt.NDArray[np.integer] | None, logits: npt.NDArray[np.float32]) -> int:
        """Draw from candidates; in falling order wherever top-p is on. ids None = candidate i is token i."""
        params = self.params
        logits = logits.astype(np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature: everything below the largest goes to -inf
            weights = np.exp((logits - logits.max()) / params.temperature)
        if params.top_p < 1:
            total = np.cumsum(weights)
            keep = int(np.searchsorted(total, params.top_p * total[-1])) + 1
            weights = weights[:keep]
        if params.min_p > 0:
            weights = np.where(weights >= params.min_p * weights.max(), weights, 0.0)
        total = np.cumsum(weights)
        pick = int(np.searchsorted(total, self._random.random() * total[-1], side="right"))
        pick = min(pick, len(total) - 1)
        return pick if ids is None else int(ids[pick])


def _largest(logits: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64] | None:
    """Indices of the `count` largest, falling, equal ones by rising index; None for count 0."""
    if not count:
        return None
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    edge = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= edge)  # rising, so that a stable sort keeps the lowest of equal ones
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def _check(logits: npt.NDArray[np.float32]) -> None:
    if not np.isfinite(logits).all():
        raise not_a_number()


def not_a_number() -> GpuError:
    """What a NaN or Inf among the logits means for the caller."""
    return GpuError(
        "the logits are not numbers",
        operation="sampling",
        hint="The weights are damaged or a kernel is wrong: run `bitnet doctor`, or try --device numpy",
    )
