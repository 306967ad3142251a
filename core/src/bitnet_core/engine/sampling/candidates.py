"""Draw a token from the largest logits of a row, or from all of them if the largest ones do not determine it.

Candidates are in descending order of their logits, equal ones in ascending order of ids. Without top-k and top-p those
beyond the SHORTLIST largest follow in ascending order of ids. A draw from a shortlist is valid only if it is the same
for all possible values of the other logits.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.logits import Logits

Doubles = npt.NDArray[np.float64]

Tail = tuple[float, float]
"""Smallest and largest possible sum of the weights of the candidates that are not listed."""

NOTHING: Tail = (0.0, 0.0)

TOTAL_ERROR = 2e-5
"""Relative and absolute error of a device's log-sum-exp: twice the tolerance of the test kit."""

SLACK = 1 + 1e-5
"""Factor that covers the rounding of bounds."""


class Filters(Protocol):
    """The filters of SamplingParams."""

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


def weights_of(
    logits: Logits, peak: npt.ArrayLike, temperature: float | npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return exp((logits - peak) / temperature); peak and temperature broadcast against the logits."""
    with np.errstate(over="ignore"):  # with a tiny temperature all weights but the largest become 0
        scaled = (logits.astype(np.float64) - np.asarray(peak, np.float64)) / temperature
        weights: npt.NDArray[np.float64] = np.exp(scaled)
    return weights


def tail_bounds(
    listed: Logits, largest: Doubles, log_sum: Doubles, others: int, peak: Doubles, temperature: Doubles
) -> tuple[Doubles, Doubles]:
    """Return bounds of the summed weights of the `others` logits that are not in each list of f32[..., k] logits.

    largest, log_sum: the row's total (logits.TopLogits). peak: the logit of weight 1. Arguments are f64[...]; bounds
    for logits that are not numbers are meaningless.

    With m the largest logit and f the smallest listed one, an unlisted x <= f has the weight
    exp(x - m) exp(x (1/T - 1) - peak/T + m), whose second factor grows with x if T <= 1.
    """
    floor = listed[..., -1].astype(np.float64)
    error = TOTAL_ERROR * np.maximum(1.0, abs(log_sum))
    with np.errstate(over="ignore", invalid="ignore"):
        known = np.exp(listed.astype(np.float64) - largest[..., None]).sum(axis=-1)
        least = np.maximum(0.0, np.exp(log_sum) * (1 - error) - known)
        most = np.maximum(0.0, np.exp(log_sum) * (1 + error) - known)
        edge = (floor - peak) / temperature
        high = others * np.exp(edge)
        high = np.where(temperature <= 1, np.minimum(high, most * np.exp(edge - floor + largest)), high)
        low = np.where(temperature == 1, least * np.exp(largest - peak), 0.0)
    return low / SLACK, high * SLACK


def tail_of(
    listed: Logits,
    total: tuple[float, float],
    others: int,
    peak: np.float32,
    filters: Filters,
    lowered: Logits,
) -> Tail:
    """Return the bounds of one row (`tail_bounds`), including candidates whose logits were `lowered` below the list."""
    largest, log_sum, top, temperature = np.array([*total, peak, filters.temperature])
    low, high = tail_bounds(listed, np.asarray(largest), log_sum, others, top, temperature)
    own = float(weights_of(lowered, peak, filters.temperature).sum())
    return own + (float(low) if filters.raw else 0.0), own + float(high)


def draw(logits: Logits, filters: Filters, tail: Tail, uniform: float) -> int | None:
    """Return the index among descending logits that `uniform` in [0, 1) selects; None if that depends on the tail.

    batched.sample_batch filters many rows in the same way; for a single row it takes four times as long as this.
    """
    weights = weights_of(logits, logits[0], filters.temperature)
    if filters.top_k:
        if len(weights) < filters.top_k and tail[1] > 0:
            return None
        weights = weights[: filters.top_k]
        tail = NOTHING
    if filters.top_p < 1:
        sums = np.cumsum(weights)
        low, high = (int(np.searchsorted(sums, filters.top_p * (sums[-1] + more))) + 1 for more in tail)
        if low != high or (high > len(weights) and tail[1] > 0):
            return None
        weights = weights[:high]
        tail = NOTHING
    if filters.min_p > 0:
        if tail[1] > 0 and weights[-1] >= filters.min_p * weights[0]:
            return None
        weights = np.where(weights >= filters.min_p * weights[0], weights, 0.0)
        tail = NOTHING
    sums = np.cumsum(weights)
    low, high = (int(np.searchsorted(sums, uniform * (sums[-1] + more), side="right")) for more in tail)
    if tail[1] > 0:
        return low if low == high < len(sums) else None
    return min(low, len(sums) - 1)


def draw_all(logits: Logits, listed: npt.NDArray[np.int64], temperature: float, uniform: float) -> int:
    """Return the token that `uniform` in [0, 1) selects among all: first those `listed`, then the others by id."""
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
    """Return the indices of the `count` > 0 largest logits in descending order, equal ones by ascending index."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    edge = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= edge)  # ascending, so that a stable sort puts the lowest of equal ones first
    return ids[np.argsort(-logits[ids], kind="stable")][:count]
