"""Tokens of many rows that are only drawn, at once: a step's host time grows little with its texts then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bitnet_core.engine.drawing import draw, no_tails, tails_of
from bitnet_core.engine.sampling import Sampler
from bitnet_core.engine.scores import Scores


def choose_together(samplers: Sequence[Sampler], lists: Sequence[Scores]) -> list[int | None]:
    """`Sampler.choose_short` of samplers that `only_draw`, from lists that are as long; None also where a list ends
    early or holds no numbers, which each is to look at alone."""
    ids = np.stack([scores.ids for scores in lists if scores.ids is not None])
    values = np.stack([scores.values for scores in lists if scores.values is not None])
    filters = [sampler.params for sampler in samplers]
    fine = np.isfinite(values[:, [0, -1]]).all(axis=1) & (ids[:, -1] >= 0)
    values[~fine] = 0
    length, vocab = ids.shape[1], samplers[0].vocab
    tails = no_tails(len(ids))
    unsure = [row for row, one in enumerate(filters) if length < vocab and not 0 < one.top_k <= length]
    if unsure:
        totals = np.array([lists[row].total or (0.0, 0.0) for row in unsure])
        tails[unsure] = tails_of(
            values[unsure], totals, vocab - length, values[unsure, 0], [filters[row] for row in unsure]
        )
    at = draw(values, filters, tails, np.array([sampler.uniform() for sampler in samplers]))
    found = fine & (at >= 0)
    for sampler, done in zip(samplers, found.tolist(), strict=True):
        if done:
            sampler.used()
    tokens = np.take_along_axis(ids, np.maximum(at, 0)[:, None], axis=1)[:, 0]
    return [token if done else None for token, done in zip(tokens.tolist(), found.tolist(), strict=True)]
