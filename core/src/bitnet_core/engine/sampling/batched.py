"""Batched sampling: draw tokens of many rows at once, so that host time hardly grows with the number of requests.

Does what `candidates` does for one row, bit for bit, on the rows of a matrix; for a few rows that is slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.candidates import SLACK, TOTAL_ERROR, Filters
from bitnet_core.engine.sampling.logits import Logits, TopLogits
from bitnet_core.engine.sampling.sampler import Sampler

Floats = npt.NDArray[np.float64]

MIN_BATCH = 10
"""Number of rows from which batching is faster."""


def sample_batch(samplers: Sequence[Sampler], lists: Sequence[TopLogits]) -> list[int | None]:
    """`Sampler.choose_from_list` of samplers that `only_draw`, from full lists of equal length; None for rows that hold
    no numbers."""
    ids = np.stack([top_logits.ids for top_logits in lists if top_logits.ids is not None])
    values = np.stack([top_logits.values for top_logits in lists if top_logits.values is not None])
    filters = [sampler.params for sampler in samplers]
    found = np.isfinite(values[:, [0, -1]]).all(axis=1)
    values[~found] = 0
    others, tails = samplers[0].vocab - ids.shape[1], np.zeros((len(ids), 2))
    totals = {row: top_logits.total for row, top_logits in enumerate(lists) if top_logits.total is not None}
    if unsure := [row for row in totals if others and not 0 < filters[row].top_k <= ids.shape[1]]:
        sums = np.array([totals[row] for row in unsure])
        tails[unsure] = _tails(values[unsure], sums, others, [filters[row] for row in unsure])
    at = _draw(values, filters, tails, np.array([sampler.uniform() for sampler in samplers]))
    found &= at >= 0
    tokens = np.where(found, ids[np.arange(len(ids)), at], -1).tolist()
    for sampler, token in zip(samplers, tokens, strict=True):
        if token >= 0:
            sampler.used()
    return [token if token >= 0 else None for token in tokens]


def _tails(listed: Logits, totals: Floats, others: int, filters: Sequence[Filters]) -> Floats:
    """drawing.tail_of of every row of f32[rows, k], as (least, most); totals: f64[rows, 2]."""
    largest, log_sum = totals.T
    temperature = np.array([one.temperature for one in filters])
    floor, top = listed[:, -1].astype(np.float64), listed[:, 0].astype(np.float64)
    error = TOTAL_ERROR * np.maximum(1.0, abs(log_sum))
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number was found before
        known = np.exp(listed.astype(np.float64) - largest[:, None]).sum(axis=1)
        least, most = (np.maximum(0.0, np.exp(log_sum) * factor - known) for factor in (1 - error, 1 + error))
        edge = (floor - top) / temperature
        high = others * np.exp(edge)
        high = np.where(temperature <= 1, np.minimum(high, most * np.exp(edge - floor + largest)), high)
    low = np.where(temperature == 1, least * np.exp(largest - top), 0.0)
    return np.stack((low / SLACK, high * SLACK), axis=1)


def _weights(logits: Logits, temperature: Floats) -> Floats:
    """drawing.weights_of, the peak being each row's first."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp((logits.astype(np.float64) - logits[:, :1]) / temperature))


def _draw(logits: Logits, filters: Sequence[Filters], tails: Floats, uniforms: Floats) -> npt.NDArray[np.int64]:
    """drawing.draw of every row of f32[rows, k], -1 for None. What a filter leaves out weighs 0: it moves no sum."""
    rows, size = logits.shape
    temperature, top_p, min_p = np.array([(one.temperature, one.top_p, one.min_p) for one in filters]).T[:, :, None]
    top_k = np.array([min(one.top_k, size + 1) for one in filters])
    weights, counts = _weights(logits, temperature), np.full(rows, size)
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
        low, high = (1 + before for before in _before(weights, top_p, (least, most), np.less))
        unknown |= (top_p[:, 0] < 1) & ((low != high) | ((high > counts) & (most > 0)))
        leave(top_p[:, 0] < 1, np.minimum(high, counts))
    if min_p.any():
        below, filtered = weights < min_p * weights[:, :1], min_p[:, 0] > 0
        unknown |= filtered & (most > 0) & ~below[:, -1]
        weights[below] = 0
        leave(filtered, counts.copy())
    low, high = _before(weights, uniforms[:, None], (least, most), np.less_equal)
    unknown |= (most > 0) & ((low != high) | (high >= counts))
    return np.where(unknown, -1, np.minimum(low, counts - 1))


def _before(
    weights: Floats, share: Floats, tails: tuple[Floats, Floats], below: np.ufunc
) -> list[npt.NDArray[np.int64]]:
    """How many sums of each row's first weights are below that share of all of them and the tail, by each of both."""
    sums = np.cumsum(weights, axis=1)
    return [np.count_nonzero(below(sums, share * (sums[:, -1:] + more[:, None])), axis=1) for more in tails]
