"""Log probabilities of a sampled token and of the likeliest ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.candidates import ids_of_largest
from bitnet_core.engine.sampling.constraint import log_sum_exp
from bitnet_core.engine.sampling.logits import Logits


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural logs of the softmax of a row's logits (after penalties, bias and mask): of the chosen token, and of the
    likeliest ones in descending order, as (token, log probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_score(logits: Logits, token: int, count: int) -> TokenScore:
    """Return the log probabilities of a token and of the `count` likeliest ones from f32[V] logits."""
    total = log_sum_exp(logits)
    likeliest = ids_of_largest(logits, count) if count else ()
    top = tuple((int(i), float(logits[i]) - total) for i in likeliest if logits[i] > -np.inf)
    return TokenScore(token, float(logits[token]) - total, top)


def listed_score(ids: npt.NDArray[np.int32], values: Logits, at: int, total: float, count: int) -> TokenScore:
    """Return the log probabilities of the token at index `at` of a shortlist and of the `count` likeliest ones. total:
    log-sum-exp of the row."""
    scores = values[:count].astype(np.float64) - total
    top = tuple(zip(ids[:count].tolist(), scores.tolist(), strict=True))
    return TokenScore(int(ids[at]), float(values[at]) - total, top)
