"""From logits to a token: greedy or random, on the host."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import GpuError, UsageError, short

from bitnet_core.engine.sampling.candidates import NOTHING, draw, draw_all, ids_of_largest, tail_of, weights_of
from bitnet_core.engine.sampling.constraint import Mask, masked
from bitnet_core.engine.sampling.logits import Logits, LogitsRequest
from bitnet_core.engine.sampling.logprobs import TokenScore, listed_score, token_score
from bitnet_core.plan.scratch import SHORTLIST

_TYPES = (
    *((name, Real, "a number") for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
    *((name, Real, "a number") for name in ("presence_penalty", "frequency_penalty")),
    ("top_k", Integral, "a whole number"),
    *((name, Integral | None, "a whole number or None") for name in ("seed", "logprobs")),
    ("logit_bias", Mapping, "a mapping"),
)
"""Parameter, type, and the type in words."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Filters apply in this order: repetition penalty, presence and frequency penalty, logit
    bias, temperature, top-k, top-p, min-p, each on what the one before left (as in the transformers library).

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch those filters off (top_p 0 leaves the likeliest token);
    seed None draws one. repetition_penalty is for all tokens so far, presence_penalty (once a token) and
    frequency_penalty (for each time it came) for generated ones (OpenAI's API reference). logprobs: how many of the
    likeliest tokens are named beside the chosen one, None for no log probabilities.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        self._check_types()
        checks = {
            "temperature must be 0 or more": 0 <= self.temperature <= sys.float_info.max,
            "top_k must be 0 or more": self.top_k >= 0,
            "top_p must be from 0 to 1": 0 <= self.top_p <= 1,
            "min_p must be from 0 to 1": 0 <= self.min_p <= 1,
            "repetition_penalty must be from 0.01 to 100": 0.01 <= self.repetition_penalty <= 100,
            "presence_penalty must be from -2 to 2": -2 <= self.presence_penalty <= 2,
            "frequency_penalty must be from -2 to 2": -2 <= self.frequency_penalty <= 2,
            "logit_bias values must be numbers up to 1e30, or -inf": all(
                abs(value) <= 1e30 or value == float("-inf") for value in self.logit_bias.values()
            ),
            "logprobs must be from 0 to 20": self.logprobs is None or 0 <= self.logprobs <= 20,
            "seed must be 0 or more": self.seed is None or self.seed >= 0,
        }
        for message, holds in checks.items():
            if not holds:
                raise UsageError(message)

    def _check_types(self) -> None:
        """What is no number would fail later, in a step that other texts share."""
        for name, kind, what in _TYPES:
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise UsageError(f"{name} must be {what}, not {short(value)}")
        biases: Mapping[Any, Any] = self.logit_bias
        for token, bias in biases.items():
            if not (isinstance(token, Integral) and isinstance(bias, Real)):
                raise UsageError(f"logit_bias must give numbers to token ids, not {short(bias)} to {short(token)}")

    @property
    def penalized(self) -> bool:
        """What came before changes the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def raw(self) -> bool:
        """Logits are used as the model gives them."""
        return not self.penalized and not self.logit_bias

    @property
    def greedy(self) -> bool:
        """The device can choose alone: the largest raw logit."""
        return self.temperature == 0 and self.raw and self.logprobs is None

    @property
    def lowering(self) -> bool:
        """No logit is ever raised."""
        lowered = self.repetition_penalty >= 1 and self.presence_penalty >= 0 and self.frequency_penalty >= 0
        return lowered and all(bias <= 0 for bias in self.logit_bias.values())


class Sampler:
    """Chooses the tokens of one sequence with a generator of its own, so that its neighbours do not matter.

    scores: what was chosen, where logprobs are on. only_draws: its tokens depend on logits and numbers alone.
    """

    def __init__(self, params: SamplingParams, vocab: int, prompt_tokens: int = 0) -> None:
        if any(not 0 <= token < vocab for token in params.logit_bias):
            raise UsageError(f"logit_bias names a token outside 0..{vocab - 1}")
        self.params = params
        self.greedy = params.greedy
        self.only_draws = params.temperature > 0 and params.raw and params.logprobs is None
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.scores: list[TokenScore] = []
        self.vocab = vocab
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._number: float | None = None
        self._want: LogitsRequest | None = None  # the same for every token where logits are raw
        self._prompt_tokens, self._noted = prompt_tokens, 0
        self._times: dict[int, int] = {}  # token -> how often it was generated; 0: it is in the prompt only

    def logits_request(self, tokens: Sequence[int]) -> LogitsRequest:
        """What is needed to choose what follows `tokens`."""
        if self._want is None or not self.params.raw:
            self._want = self._wanted(tokens)
        return self._want

    def _wanted(self, tokens: Sequence[int]) -> LogitsRequest:
        params = self.params
        if self.greedy:
            return LogitsRequest(1)
        if not params.lowering or (params.logprobs is not None and not params.raw):
            return LogitsRequest(0)
        needed, named = self._sure_length(tokens), params.logprobs
        return LogitsRequest(min(max(needed, named or 0), SHORTLIST), rest=named is not None or needed > SHORTLIST)

    def _sure_length(self, tokens: Sequence[int]) -> int:
        """Length from which on a shortlist decides by itself: where logits are only lowered, and m of them, the k
        largest afterwards are among the k + m largest before."""
        params = self.params
        length = 1 if params.temperature == 0 else params.top_k or SHORTLIST + 1
        if params.penalized:
            self._note(tokens)
            length += len(self._times)
        return length + len(params.logit_bias)

    def choose(self, logits: Logits, tokens: Sequence[int], mask: Mask | None = None) -> int:
        """Token for f32[V] logits after `tokens`; only what `mask` allows. GpuError on NaN and Inf."""
        _check(logits)
        params = self.params
        if not params.raw:
            logits = self._adjusted(logits, tokens)
        if mask is not None:
            logits = masked(logits, mask)
        if np.isneginf(logits).all():
            raise forbidden()
        token = int(np.argmax(logits)) if params.temperature == 0 else self._drawn(logits)
        if params.logprobs is not None:
            self.scores.append(token_score(logits, token, params.logprobs))
        return token

    def choose_from_list(
        self,
        ids: npt.NDArray[np.int32],
        values: Logits,
        tokens: Sequence[int] = (),
        total: tuple[float, float] | None = None,
    ) -> int | None:
        """Token for a shortlist as Scores has it; None where it takes all logits. The two agree for every seed."""
        if self.greedy and ids[0] >= 0:
            _check(values[:1])
            return int(ids[0])
        others = self.vocab - len(ids)
        if ids[-1] < 0:
            ids, values, others = ids[ids >= 0], values[ids >= 0], 0
        if not len(ids):
            raise forbidden()
        _check(values[[0, -1]])
        params, given, uncertain = self.params, values, values[:0]
        sure = not others or self._sure_length(tokens) <= len(ids)
        if not params.raw:
            ids, values = _in_order(ids, self._lowered(ids, values, tokens))
            count = len(ids) if sure else int((values > given[-1]).sum())  # below, an unlisted one may come between
            if not count:
                return None
            ids, values, uncertain = ids[:count], values[:count], values[count:]
            if np.isneginf(values[0]):
                raise forbidden()
        at: int | None = 0
        if params.temperature > 0:
            tail = NOTHING
            if not sure and total is not None:
                tail = tail_of(given, total, others, values[0], params, uncertain)
            at = draw(values, params, tail, self.uniform())
        if at is None:
            return None
        self.used()
        if params.logprobs is not None and total is not None:
            self.scores.append(listed_score(ids, values, at, sum(total), params.logprobs))
        return int(ids[at])

    def _drawn(self, logits: Logits) -> int:
        """A token at random, out of all logits."""
        params, uniform = self.params, self.uniform()
        self.used()
        ids = ids_of_largest(logits, params.top_k or SHORTLIST)
        if params.top_k == 0 and params.top_p == 1 and params.min_p == 0:
            return draw_all(logits, ids, params.temperature, uniform)
        weight = float(weights_of(logits, logits[ids[0]], params.temperature).sum())
        rest = max(0.0, weight - float(weights_of(logits[ids], logits[ids[0]], params.temperature).sum()))
        at = draw(logits[ids], params, (rest, rest), uniform)
        if at is None:  # the filters leave more than the list has
            ids = ids_of_largest(logits, len(logits))
            at = draw(logits[ids], params, NOTHING, uniform)
            assert at is not None
        return int(ids[at])

    def uniform(self) -> float:
        """The number of [0, 1) that decides the next token; the same one until a token is chosen by it."""
        if self._number is None:
            self._number = self._random.random()
        return self._number

    def used(self) -> None:
        """The next token is decided by another number."""
        self._number = None

    def _note(self, tokens: Sequence[int]) -> None:
        """Count the tokens that are new since the last call."""
        for at in range(self._noted, len(tokens)):
            self._times[tokens[at]] = self._times.get(tokens[at], 0) + (at >= self._prompt_tokens)
        self._noted = len(tokens)

    def _adjusted(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        """All logits after penalties and bias. CTRL's penalty (Keskar et al. 2019): seen tokens' logits are divided, or
        multiplied where negative."""
        out = logits.copy()
        if self.params.penalized:
            self._note(tokens)
            ids = np.fromiter(self._times, np.int64, len(self._times))
            out[ids] = self._penalized(out[ids], np.fromiter(self._times.values(), np.float32, len(ids)))
        for token, bias in self.params.logit_bias.items():
            out[token] += np.float32(bias)
        return out

    def _lowered(self, ids: npt.NDArray[np.int32], values: Logits, tokens: Sequence[int]) -> Logits:
        """The same for a shortlist."""
        out = values.copy()
        if self.params.penalized:
            self._note(tokens)
            times = np.array([self._times.get(token, -1) for token in ids.tolist()], np.float32)
            out[times >= 0] = self._penalized(out[times >= 0], times[times >= 0])
        return out + np.array([self.params.logit_bias.get(token, 0.0) for token in ids.tolist()], np.float32)

    def _penalized(self, logits: Logits, times: Logits) -> Logits:
        """Logits of tokens that came before, `times` times since the prompt."""
        params, factor = self.params, np.float32(self.params.repetition_penalty)
        repeated = np.where(logits > 0, logits / factor, logits * factor)
        once = np.float32(params.presence_penalty) * (times > 0)
        return np.asarray(repeated - once - np.float32(params.frequency_penalty) * times, np.float32)


def _in_order(ids: npt.NDArray[np.int32], values: Logits) -> tuple[npt.NDArray[np.int32], Logits]:
    order = np.lexsort((ids, -values))
    return ids[order], values[order]


def _check(logits: Logits) -> None:
    if not np.isfinite(logits).all():
        raise not_a_number()


def forbidden() -> UsageError:
    """What ends a text to which nothing may be added."""
    return UsageError("logit_bias or the grammar forbids every token")


def not_a_number() -> GpuError:
    """What a NaN or Inf among the logits means for the caller."""
    return GpuError(
        "the logits are not numbers",
        operation="sampling",
        hint="The weights are damaged or a kernel is wrong: run `bitnet doctor`, or try --device numpy",
    )
