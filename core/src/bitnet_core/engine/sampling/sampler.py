"""Sample a token from logits on the host: greedily or at random."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import GpuError, UsageError

from bitnet_core.engine.sampling.candidates import NOTHING, draw, draw_all, ids_of_largest, tail_of, weights_of
from bitnet_core.engine.sampling.constraint import Mask, masked
from bitnet_core.engine.sampling.logits import Logits, LogitsRequest
from bitnet_core.engine.sampling.logprobs import TokenScore, listed_score, token_score
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.plan.scratch import SHORTLIST


class Sampler:
    """The sampler of one request, with its own random generator, so that its tokens do not depend on other requests.

    scores: log probabilities of the chosen tokens, if logprobs are on. only_draws: True if tokens depend only on the
    logits of their step and on random numbers. drawn: number of random numbers used so far; with the seed it is the
    state of the generator, so that another process can continue.
    """

    def __init__(self, params: SamplingParams, vocab: int, prompt_tokens: int = 0) -> None:
        if any(not 0 <= token < vocab for token in params.logit_bias):
            raise UsageError(f"logit_bias names a token outside 0..{vocab - 1}")
        self.params = params
        self.greedy = params.greedy
        drawn = params.temperature > 0 and not params.needs_all_logits
        self.only_draws = drawn and params.raw and params.logprobs is None
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.scores: list[TokenScore] = []
        self.vocab = vocab
        self.drawn = 0
        self._random: np.random.Generator | None = None
        self._number: float | None = None
        self._logits_request: LogitsRequest | None = None  # the same for every token, if logits are raw
        self._prompt_tokens = prompt_tokens
        self._noted = 0
        self._times: dict[int, int] = {}  # token -> times that it was generated; 0: in the prompt only

    def logits_request(self, tokens: Sequence[int], drafted: int = 0) -> LogitsRequest:
        """Return the LogitsRequest for choosing a token after `tokens` and `drafted` draft tokens."""
        if self._logits_request is None or not self.params.raw:
            self._logits_request = self._needed_logits(tokens, drafted)
        return self._logits_request

    def _needed_logits(self, tokens: Sequence[int], drafted: int) -> LogitsRequest:
        params = self.params
        if self.greedy:
            return LogitsRequest(1)
        scored = params.logprobs is not None and not params.raw
        if params.needs_all_logits or not params.lowering or scored:
            return LogitsRequest(0)
        needed = self._sure_length(tokens) + (drafted if params.penalized else 0)
        named = params.logprobs
        return LogitsRequest(min(max(needed, named or 0), SHORTLIST), rest=named is not None or needed > SHORTLIST)

    def _sure_length(self, tokens: Sequence[int]) -> int:
        """Return a shortlist length that always suffices: if m logits are lowered and none is raised, the k largest
        afterwards are among the k + m largest before."""
        params = self.params
        length = 1 if params.temperature == 0 else params.top_k or SHORTLIST + 1
        if params.penalized:
            self._note(tokens)
            length += len(self._times)
        return length + len(params.logit_bias)

    def choose(self, logits: Logits, tokens: Sequence[int], mask: Mask | None = None) -> int:
        """Choose the token after `tokens` from f32[V] logits, among those that `mask` allows. Raises GpuError on NaN
        and Inf."""
        _check(logits)
        params = self.params
        if not params.raw:
            logits = self._adjusted(logits, tokens)
        if mask is not None:
            logits = masked(logits, mask)
        if np.isneginf(logits).all():
            raise forbidden()
        token = (
            int(np.argmax(logits))
            if params.temperature == 0
            else self._drawn(_within_sigma(logits, params.top_n_sigma))
        )
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
        """Choose a token from a shortlist (logits.TopLogits); None if all logits are needed. Agrees with `choose` for
        every seed."""
        if self.greedy and ids[0] >= 0:
            _check(values[:1])
            return int(ids[0])
        others = self.vocab - len(ids)
        if ids[-1] < 0:
            ids, values, others = ids[ids >= 0], values[ids >= 0], 0
        if not len(ids):
            raise forbidden()
        _check(values[[0, -1]])
        params = self.params
        given = values
        uncertain = values[:0]
        sure = not others or self._sure_length(tokens) <= len(ids)
        if not params.raw:
            ids, values = _in_order(ids, self._lowered(ids, values, tokens))
            count = len(ids) if sure else int((values > given[-1]).sum())  # unlisted ones may exceed the others
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
        """Draw a token from all logits."""
        params = self.params
        uniform = self.uniform()
        self.used()
        ids = ids_of_largest(logits, params.top_k or SHORTLIST)
        if params.top_k == 0 and params.top_p == 1 and params.min_p == 0:
            return draw_all(logits, ids, params.temperature, uniform)
        weight = float(weights_of(logits, logits[ids[0]], params.temperature).sum())
        rest = max(0.0, weight - float(weights_of(logits[ids], logits[ids[0]], params.temperature).sum()))
        at = draw(logits[ids], params, (rest, rest), uniform)
        if at is None:  # the filters keep more candidates than are listed
            ids = ids_of_largest(logits, len(logits))
            at = draw(logits[ids], params, NOTHING, uniform)
            assert at is not None
        return int(ids[at])

    def uniform(self) -> float:
        """Return the random number in [0, 1) for the next token; the same one until `used` is called."""
        if self._number is None:
            if self._random is None:
                self._random = np.random.Generator(np.random.PCG64(self.seed).advance(self.drawn))
            self._number = self._random.random()
        return self._number

    def used(self) -> None:
        """Advance to the next random number."""
        self.drawn += self._number is not None
        self._number = None

    def go_on(self, drawn: int, scores: Iterable[TokenScore] = ()) -> None:
        """Continue after tokens that a copy of this sampler chose. drawn: total number of random numbers that it has
        used. scores: those of the new tokens."""
        if drawn != self.drawn:
            self.drawn = drawn
            self._random = self._number = None
        self.scores += scores

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_random": None, "_number": None}

    def _note(self, tokens: Sequence[int]) -> None:
        """Count the tokens that are new since the last call."""
        for at in range(self._noted, len(tokens)):
            self._times[tokens[at]] = self._times.get(tokens[at], 0) + (at >= self._prompt_tokens)
        self._noted = len(tokens)

    def _adjusted(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        """Apply penalties and bias to all logits. The repetition penalty is CTRL's (Keskar et al. 2019): logits of seen
        tokens are divided by it if positive, else multiplied."""
        out = logits.copy()
        if self.params.penalized:
            self._note(tokens)
            ids = np.fromiter(self._times, np.int64, len(self._times))
            out[ids] = self._penalized(out[ids], np.fromiter(self._times.values(), np.float32, len(ids)))
        for token, bias in self.params.logit_bias.items():
            out[token] += np.float32(bias)
        return out

    def _lowered(self, ids: npt.NDArray[np.int32], values: Logits, tokens: Sequence[int]) -> Logits:
        """Apply penalties and bias to a shortlist."""
        out = values.copy()
        if self.params.penalized:
            self._note(tokens)
            times = np.array([self._times.get(token, -1) for token in ids.tolist()], np.float32)
            out[times >= 0] = self._penalized(out[times >= 0], times[times >= 0])
        return out + np.array([self.params.logit_bias.get(token, 0.0) for token in ids.tolist()], np.float32)

    def _penalized(self, logits: Logits, times: Logits) -> Logits:
        """Return the penalized logits of tokens that were generated `times` times (0: in the prompt only)."""
        params = self.params
        factor = np.float32(self.params.repetition_penalty)
        repeated = np.where(logits > 0, logits / factor, logits * factor)
        once = np.float32(params.presence_penalty) * (times > 0)
        return np.asarray(repeated - once - np.float32(params.frequency_penalty) * times, np.float32)


def _within_sigma(logits: Logits, n: float) -> Logits:
    """Return f32[V] with -inf for logits below max - n * standard deviation; n <= 0: unchanged.

    Logits of -inf count neither before nor after (Tang et al. 2024, "Top-n-sigma: Not All Logits Are You Need", and
    llama.cpp).
    """
    if n <= 0:
        return logits
    allowed = logits[logits > -np.inf].astype(np.float64)
    return np.where(logits >= allowed.max() - n * allowed.std(), logits, np.float32("-inf"))


def _in_order(ids: npt.NDArray[np.int32], values: Logits) -> tuple[npt.NDArray[np.int32], Logits]:
    order = np.lexsort((ids, -values))
    return ids[order], values[order]


def _check(logits: Logits) -> None:
    if not np.isfinite(logits).all():
        raise not_a_number()


def forbidden() -> UsageError:
    """Return the error of a request for which no token is allowed."""
    return UsageError("logit_bias or the grammar forbids every token")


def not_a_number() -> GpuError:
    """Return the error for a NaN or Inf among the logits."""
    return GpuError(
        "the logits are not numbers",
        operation="sampling",
        hint="The weights are damaged or a kernel is wrong: run `bitnet doctor`, or try --device numpy",
    )
