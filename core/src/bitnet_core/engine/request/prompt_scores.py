"""Log probabilities of the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.logprobs import TokenScore, token_score


class PromptScores:
    """The scores of a prompt's tokens after the first, each with the `count` likeliest ones; used as Request.scored.

    They are computed in the process of the engine, because a row of logits takes half a megabyte. scores: by position.
    """

    def __init__(self, prompt: Sequence[int], count: int) -> None:
        self._prompt, self._count = prompt, count
        self.scores: dict[int, TokenScore] = {}

    def empty(self) -> Self:
        """Return an object with the same arguments and no scores, for another process."""
        return type(self)(self._prompt, self._count)

    def __call__(self, position: int, logits: npt.NDArray[np.float32]) -> None:
        """Store the score of the token after a position."""
        if (score := self.score(position, logits)) is not None:
            self.scores[position + 1] = score

    def score(self, position: int, logits: npt.NDArray[np.float32]) -> TokenScore | None:
        """Return the score of the token after a position; None after the last one."""
        if position + 1 >= len(self._prompt):
            return None
        return token_score(logits, self._prompt[position + 1], self._count)
