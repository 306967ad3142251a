"""Batched sampling: draw tokens of many rows at once, so that host time hardly grows with the number of requests.

The result for each row equals that of `candidates.draw` bit for bit; for a few rows this is slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.candidates import Doubles, Filters, tail_bounds, weights_of
from bitnet_core.engine.sampling.logits import Logits, TopLogits
from bitnet_core.engine.sampling.sampler import Sampler

MIN_BATCH = 10
"""Number of rows from which batching is faster."""


def sample_batch(samplers: Sequence[Sampler], lists: Sequence[TopLogits]) -> list[int | None]:
    """Return the results of Sampler.choose_from_list for samplers with `only_draws` and full lists of equal length;
    None for rows that need all logits or contain NaN or Inf."""
    ids = np.stack([top_logits.ids for top_logits in lists if top_logits.ids is not None])
    values = np.stack([top_logits.values for top_logits in lists if top_logits.values is not None])
    filters = [sampler.params for sampler in samplers]
    found = np.isfinite(values[:, [0, -1]]).all(axis=1)
    values[~found] = 0
    others = samplers[0].vocab - ids.shape[1]
    tails = np.zeros((len(ids), 2))
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


def _tails(listed: Logits, totals: Doubles, others: int, filters: Sequence[Filters]) -> Doubles:
    """Return candidates.tail_bounds of every row as f64[rows, 2]. totals: f64[rows, 2]."""
    temperature = np.array([one.temperature for one in filters])
    peak = listed[:, 0].astype(np.float64)
    return np.stack(tail_bounds(listed, totals[:, 0], totals[:, 1], others, peak, temperature), axis=1)


def _draw(logits: Logits, filters: Sequence[Filters], tails: Doubles, uniforms: Doubles) -> npt.NDArray[np.int64]:
    """Return candidates.draw of every row of f32[rows, k], -1 for None. Filtered candidates get weight 0, which leaves
    the sums unchanged."""
    rows, size = logits.shape
    temperature, top_p, min_p = np.array([(one.temperature, one.top_p, one.min_p) for one in filters]).T[:, :, None]
    top_k = np.array([min(one.top_k, size + 1) for one in filters])
    weights = weights_of(logits, logits[:, :1], temperature)
    counts = np.full(rows, size)
    least, most = tails.T.copy()
    unknown = np.zeros(rows, bool)

    def keep(filtered: npt.NDArray[np.bool_], left: npt.NDArray[np.int64]) -> None:
        np.copyto(counts, left, where=filtered)
        weights[np.arange(size) >= counts[:, None]] = 0
        least[filtered] = most[filtered] = 0

    if top_k.any():
        unknown |= (top_k > size) & (most > 0)
        keep(top_k > 0, np.minimum(top_k, size))
    if (top_p < 1).any():
        low, high = (1 + before for before in _before(weights, top_p, (least, most), np.less))
        unknown |= (top_p[:, 0] < 1) & ((low != high) | ((high > counts) & (most > 0)))
        keep(top_p[:, 0] < 1, np.minimum(high, counts))
    if min_p.any():
        below = weights < min_p * weights[:, :1]
        filtered = min_p[:, 0] > 0
        unknown |= filtered & (most > 0) & ~below[:, -1]
        weights[below] = 0
        keep(filtered, counts.copy())
    low, high = _before(weights, uniforms[:, None], (least, most), np.less_equal)
    unknown |= (most > 0) & ((low != high) | (high >= counts))
    return np.where(unknown, -1, np.minimum(low, counts - 1))


def _before(
    weights: Doubles, share: Doubles, tails: tuple[Doubles, Doubles], below: np.ufunc
) -> list[npt.NDArray[np.int64]]:
    """Count the cumulative weights of each row below `share` of their total plus the tail, for both bounds of the
    tail."""
    sums = np.cumsum(weights, axis=1)
    return [np.count_nonzero(below(sums, share * (sums[:, -1:] + more[:, None])), axis=1) for more in tails]
