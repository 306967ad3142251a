"""Drawing a token from the largest logits of a row, and from all of them only where those leave it open.

Candidates are in falling order, equal ones by rising id; without top-k and top-p those beyond the SHORTLIST largest
follow by rising id. A draw from a shortlist is taken only where it is the same whatever the rest may be.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.logits import Logits

Tail = tuple[float, float]
"""Least and most that the weights of the candidates beyond a list may add up to."""

NOTHING: Tail = (0.0, 0.0)

TOTAL_ERROR = 2e-5
"""Relative and absolute error that a device's log-sum-exp may have: twice what the test kit lets pass."""

SLACK = 1 + 1e-5
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


def weights_of(logits: Logits, peak: np.float32, temperature: float) -> npt.NDArray[np.float64]:
    """exp((logit - peak) / temperature)."""
    with np.errstate(over="ignore"):  # a tiny temperature: everything below the largest goes to -inf
        weights: npt.NDArray[np.float64] = np.exp((logits.astype(np.float64) - np.float64(peak)) / temperature)
    return weights


def tail_of(
    listed: Logits,
    total: tuple[float, float],
    others: int,
    peak: np.float32,
    filters: Filters,
    lowered: Logits,
) -> Tail:
    """Bounds of what `others` logits beyond a list weigh (as weights_of has it), from the sum of all exponentials, and
    with them candidates that were `lowered` to where unlisted ones may be.

    With m the largest of all and f the smallest listed logit, an unlisted x <= f weighs
    exp(x - m) exp(x (1/T - 1) - peak/T + m), of which the second factor grows with x where T <= 1.
    """
    largest, log_sum = total
    temperature, floor, top = filters.temperature, float(listed[-1]), float(peak)
    error = TOTAL_ERROR * max(1.0, abs(log_sum))
    known = float(np.exp(listed.astype(np.float64) - largest).sum())
    least, most = (max(0.0, float(np.exp(log_sum)) * factor - known) for factor in (1 - error, 1 + error))
    own = float(weights_of(lowered, peak, temperature).sum())
    edge = (floor - top) / temperature
    high = others * float(np.exp(edge))
    if temperature <= 1:
        high = min(high, most * float(np.exp(edge - floor + largest)))
    low = least * float(np.exp(largest - top)) if filters.raw and temperature == 1 else 0.0
    return own + low / SLACK, own + high * SLACK


def draw(logits: Logits, filters: Filters, tail: Tail, uniform: float) -> int | None:
    """Index among falling logits that a number of [0, 1) falls on; None where the tail has to be known for it."""
    weights = weights_of(logits, logits[0], filters.temperature)
    if filters.top_k:
        if len(weights) < filters.top_k and tail[1] > 0:
            return None
        weights, tail = weights[: filters.top_k], NOTHING
    if filters.top_p < 1:
        sums = np.cumsum(weights)
        low, high = (int(np.searchsorted(sums, filters.top_p * (sums[-1] + more))) + 1 for more in tail)
        if low != high or (high > len(weights) and tail[1] > 0):
            return None
        weights, tail = weights[:high], NOTHING
    if filters.min_p > 0:
        if tail[1] > 0 and weights[-1] >= filters.min_p * weights[0]:
            return None
        weights, tail = np.where(weights >= filters.min_p * weights[0], weights, 0.0), NOTHING
    sums = np.cumsum(weights)
    low, high = (int(np.searchsorted(sums, uniform * (sums[-1] + more), side="right")) for more in tail)
    if tail[1] > 0:
        return low if low == high < len(sums) else None
    return min(low, len(sums) - 1)


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


def ids_of_largest(logits: Logits, count: int) -> npt.NDArray[np.int64]:
    """Indices of the `count` > 0 largest, falling, equal ones by rising index."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    edge = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= edge)  # rising, so that a stable sort keeps the lowest of equal ones
    return ids[np.argsort(-logits[ids], kind="stable")][:count]
