"""Perplexity of a model on a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from bitnet_hal.errors import UsageError

_ROWS = 64
"""Rows per scoring step: their logits must fit in host memory beside the model."""


class Scoring(Protocol):
    """An object that computes logits: Engine, or a reference implementation of the tests."""

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens of one `score` call."""

    def score(self, tokens: Sequence[int], use: Callable[[int, npt.NDArray[np.float32]], None], chunk: int = 0) -> None:
        """Compute the logits after every token, as Engine.score."""


def token_losses(
    engine: Scoring, tokens: Sequence[int], scored: Callable[[int], None] | None = None
) -> npt.NDArray[np.float64]:
    """Return f64[T - 1]: the negative log likelihood of every token but the first, given those before it. scored(n):
    called when n tokens are scored."""
    losses = np.empty(len(tokens), np.float64)
    following = np.asarray([*tokens[1:], 0])

    def use(first: int, logits: npt.NDArray[np.float32]) -> None:
        wide = logits.astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        totals = np.log(np.exp(wide).sum(axis=1))
        rows = np.arange(len(wide))
        losses[first : first + len(wide)] = totals - wide[rows, following[first : first + len(wide)]]
        if scored is not None:
            scored(first + len(wide))

    engine.score(tokens, use, _ROWS)
    return losses[:-1]


def perplexity(
    engine: Scoring,
    tokens: Sequence[int],
    stride: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> float:
    """Return exp of the mean loss of every token but the first, computed in windows of max_model_len tokens that start
    `stride` tokens apart (default: half the window). progress: called with ("scoring", tokens scored, tokens).

    Raises UsageError for fewer than two tokens or a stride out of range.
    """
    window = engine.max_model_len
    stride = max(1, window // 2) if stride is None else stride
    if len(tokens) < 2 or not 0 < stride <= window:
        raise UsageError("perplexity needs at least two tokens, and a stride from 1 to the context length")
    losses: list[npt.NDArray[np.float64]] = []
    done = 1
    for start in range(0, len(tokens), stride):
        part = tokens[start : start + window]

        def scored(count: int, start: int = start) -> None:
            if progress is not None:
                progress("scoring", start + count, len(tokens))

        losses.append(token_losses(engine, part, scored)[max(0, done - start - 1) :])
        done = start + len(part)
        if done == len(tokens):
            break
    return float(np.exp(np.concatenate(losses).mean()))
