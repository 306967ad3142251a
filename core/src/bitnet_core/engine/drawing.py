"""Drawing a token from the largest logits of a row, and from all of them only where those leave it open.

Candidates are in falling order, equal ones by rising id; without top-k and top-p those beyond the SHORTLIST largest
follow by rising id. A draw from a shortlist is taken only where it is the same whatever the rest may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.scores import Logits

Floats = npt.NDArray[np.float64]

Tails = Floats
"""f64[rows, 2]: least and most that the weights of the candidates beyond each row's list may add up to."""

_TOTAL_ERROR = 2e-5
"""Relative and absolute error that a device's log-sum-exp may have: twice what the test kit lets pass."""

_SLACK = 1 + 1e-5
"""Rounding of bounds."""


class Filters(Protocol):
    """Of SamplingParams."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def raw(self) -> bool: ...


def weights_of(logits: Logits, peak: Logits | np.float32, temperature: Floats | float) -> Floats:
    """exp((logit - peak) / temperature)."""
    with np.errstate(over="ignore"):  # a tiny temperature: everything below the largest goes to -inf
        weights: Floats = np.exp((logits.astype(np.float64) - peak) / temperature)
    return weights


def no_tails(rows: int) -> Tails:
    """The lists hold all candidates."""
    return np.zeros((rows, 2))


def tails_of(listed: Logits, totals: Floats, others: int, peak: Logits, filters: Sequence[Filters]) -> Tails:
    """Bounds of what `others` logits beyond each row's list weigh (as weights_of has it), from the sum of all
    exponentials. listed: f32[rows, k], falling; totals: as Scores has them; peak: the logits that weigh 1.

    With m the largest of all and f the smallest listed logit, an unlisted x <= f weighs
    exp(x - m) exp(x (1/T - 1) - peak/T + m), of which the second factor grows with x where T <= 1.
    """
    largest, log_sum = totals.T
    temperature = np.array([one.temperature for one in filters])
    raw = np.array([one.raw for one in filters])
    floor, top = listed[:, -1].astype(np.float64), peak.astype(np.float64)
    error = _TOTAL_ERROR * np.maximum(1.0, abs(log_sum))
    known = np.exp(listed.astype(np.float64) - largest[:, None]).sum(axis=1)
    least, most = (np.maximum(0.0, np.exp(log_sum) * factor - known) for factor in (1 - error, 1 + error))
    with np.errstate(over="ignore"):
        edge = (floor - top) / temperature
        high = others * np.exp(edge)
        high = np.where(temperature <= 1, np.minimum(high, most * np.exp(edge - floor + largest)), high)
    low = np.where(raw & (temperature == 1), least * np.exp(largest - top), 0.0)
    return np.stack((low / _SLACK, high * _SLACK), axis=1)


def draw(logits: Logits, filters: Sequence[Filters], tails: Tails, uniforms: Floats) -> npt.NDArray[np.int64]:
    """Where in each row of f32[rows, k] falling logits its number of [0, 1) falls; -1 where the tail has to be known.

    What a filter leaves out weighs 0: it moves no sum.
    """
    rows, size = logits.shape
    temperature, top_p, min_p = np.array([(one.temperature, one.top_p, one.min_p) for one in filters]).T[:, :, None]
    top_k = np.array([min(one.top_k, size + 1) for one in filters])
    weights, counts = weights_of(logits, logits[:, :1], temperature), np.full(rows, size)
    least, most = tails.T.copy()
    unknown = np.zeros(rows, bool)

    def leave(filtered: npt.NDArray[np.bool_], left: npt.NDArray[np.int64]) -> None:
        np.copyto(counts, left, where=filtered)
        weights[np.arange(size) >= counts[:, None]] = 0
        least[filtered] = most[filtered] = 0

    if top_k.any():
        unknown |= (top_k > size) & (most > 0)
        leave(top_k > 0, np.minimum(top_k, size))
    if (top_p < 1).any():
        low, high = (_before(weights, top_p, more, np.less) + 1 for more in (least, most))
        unknown |= (top_p[:, 0] < 1) & ((low != high) | ((high > counts) & (most > 0)))
        leave(top_p[:, 0] < 1, np.minimum(high, counts))
    if min_p.any():
        below, filtered = weights < min_p * weights[:, :1], min_p[:, 0] > 0
        unknown |= filtered & (most > 0) & ~below[:, -1]
        weights[below] = 0
        leave(filtered, counts.copy())
    low, high = (_before(weights, uniforms[:, None], more, np.less_equal) for more in (least, most))
    unknown |= (most > 0) & ((low != high) | (high >= counts))
    return np.where(unknown, -1, np.minimum(low, counts - 1))


def _before(weights: Floats, share: Floats, more: Floats, below: np.ufunc) -> npt.NDArray[np.int64]:
    """How many sums of each row's first weights are below that share of all of them and `more`."""
    sums = np.cumsum(weights, axis=1)
    return np.asarray(below(sums, share * (sums[:, -1:] + more[:, None])).sum(axis=1))


def draw_all(logits: Logits, listed: npt.NDArray[np.int64], temperature: float, uniform: float) -> int:
    """The token that a number of [0, 1) falls on where all take part: first those `listed`, then the others by id."""
    peak = logits[listed[0]]
    sums = np.cumsum(weights_of(logits[listed], peak, temperature))
    with np.errstate(over="ignore"):
        others = (logits - peak) * np.float32(1 / max(temperature, 1e-30))
    others[listed] = -np.inf
    tail = np.cumsum(np.exp(others), dtype=np.float64)
    at = uniform * (sums[-1] + tail[-1])
    if at < sums[-1] or tail[-1] == 0:
        return int(listed[min(int(np.searchsorted(sums, at, side="right")), len(listed) - 1)])
    return min(int(np.searchsorted(tail, at - sums[-1], side="right")), len(logits) - 1)
