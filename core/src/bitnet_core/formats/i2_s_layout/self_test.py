"""The self-test that decides the layout of an I2_S file by the mean negative log-likelihood (NLL) of a fixed text.

A trained model predicts plain English with the right layout (2 to 4 nats per token) and not at all with a wrong one
(more than 10). Untrained models (random weights, for tests and measurements) predict nothing with any layout; they are
recognised by an embedding table of noise, and keep the assumed layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from bitnet_hal.rounding import ceil_div

from bitnet_core.errors import ModelError
from bitnet_core.formats.dense import decode
from bitnet_core.formats.gguf.source import GGUFSource
from bitnet_core.formats.i2_s_layout.statistics import Decision, in_words
from bitnet_core.formats.ternary.i2_s import LAYOUTS
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import DenseWeight
from bitnet_core.options.loading import Layout

SELF_TEST_TEXT = "Once upon a time there was a small dog named Max. Max lived in a house with a blue door."
"""A text that is easy for any model of English, even one trained only on stories."""

_GOOD = 0.6  # share of ln(vocabulary), the NLL of guessing; a language model is below
_ROWS = 1024  # sampled rows of the embedding table
_PART = 64  # rows per chunk
_BY_CHANCE = 2.0  # times the expected value; the shipped model measures 264 and 13 times
_LEAD = 1.0  # nats below the second best layout


def decide_layout(source: ModelSource, nll: Callable[[Layout], float]) -> None:
    """Determine an ambiguous I2_S layout by a self-test; does nothing if it is certain or the model is untrained.

    nll: mean negative log-likelihood (nats per token) of SELF_TEST_TEXT with the weights of `source` at the time of the
    call; called once per layout, the likeliest first. Raises ModelError if the model predicts the text with no layout
    better than by guessing.
    """
    if not isinstance(source, GGUFSource) or not source.has_i2_s or not source.layout.in_doubt:
        return
    before = source.layout
    if source.config.pooling:
        text = f"{before.evidence}; a model that embeds texts predicts none"
        source.layout = replace(before, evidence=text)
        return
    if is_noise(source.dense("token_embd")):
        text = f"{before.evidence}; the model is untrained (its embedding table is noise), so no text can decide"
        source.layout = replace(before, evidence=text)
        return

    def measure(kind: Layout) -> float:
        source.layout = Decision(kind, "self-test", "being measured")
        return nll(kind)

    try:
        decision, evidence = _measure(source.i2_s_layouts, source.config.vocab, measure)
    finally:
        source.layout = before
    if decision is None:
        raise ModelError(
            f"{source.path}: the model predicts plain English with none of the I2_S layouts better than by guessing "
            f"({evidence}): the weights are damaged, untrained, or not I2_S; pass the layout to open it anyway"
        )
    source.layout = decision


def is_noise(table: DenseWeight) -> bool:
    """Return whether the rows of an embedding table look like independent random numbers.

    The rows of a trained table share a direction and differ in length; those of noise do so only by chance. Of n rows
    of independent x with variance v and fourth moment k v^2, the mean has the squared length columns * v / n, and the
    squared lengths of the rows have the variance columns * (k - 1) * v^2.
    """
    step = ceil_div(table.rows, _ROWS)
    total, fourth, lengths = np.zeros(table.columns), 0.0, []
    for at in range(0, table.rows, _PART * step):  # a chunk fits in the processor's cache
        rows = decode(table.data[at : at + _PART * step : step], table.dtype, table.columns).astype(np.float64)
        squares = rows**2
        total += rows.sum(axis=0)
        fourth += float(np.sum(squares**2))  # rows**4 takes ten times as long
        lengths.append(squares.sum(axis=1))
    squared = np.concatenate(lengths)
    count, elements = squared.size, squared.size * table.columns
    shared, second = float(np.sum((total / count) ** 2)), float(squared.sum()) / elements
    return shared <= _BY_CHANCE * table.columns * second / count and squared.var() <= _BY_CHANCE * table.columns * (
        fourth / elements - second**2
    )


def _measure(layouts: Iterable[Layout], vocab: int, nll: Callable[[Layout], float]) -> tuple[Decision | None, str]:
    """Return the layout with which the model predicts SELF_TEST_TEXT, and the measurements in words.

    nll: mean NLL of that text in nats per token with a layout. Layouts are tried in order until one is good; the result
    is None if none is better than guessing, or if none is clearly better than the others.
    """
    guessing = float(np.log(vocab))
    found: dict[Layout, float] = {}
    for layout in sorted(layouts, key=LAYOUTS.index):
        value = nll(layout)
        found[layout] = value if np.isfinite(value) else float("inf")
        if found[layout] < _GOOD * guessing:
            break
    text = f"NLL of a plain text in nats per token: {in_words(found)}; guessing gives {guessing:.3g}"
    best, *others = sorted(found, key=lambda layout: found[layout])
    if found[best] < _GOOD * guessing:
        return Decision(best, "self-test", text), text
    if found[best] < guessing and all(found[other] - found[best] >= _LEAD for other in others):
        return Decision(best, "self-test", text), text
    return None, text
