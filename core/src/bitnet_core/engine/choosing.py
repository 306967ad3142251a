"""The rows of a step whose logits matter: each chooses its text's next token, or keeps what ended the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.constraint import Mask
from bitnet_core.engine.scores import Logits, Scores, Want
from bitnet_core.engine.sequence import Sequence as Text
from bitnet_core.engine.together import WORTH_IT, choose_together


@dataclass(slots=True, eq=False)
class Row:
    """One row of one text. scored_at: its position where the text wants its logits, else -1; chooses: the next token
    follows from it. token, error: what came of it."""

    sequence: Text
    scored_at: int = -1
    chooses: bool = True
    token: int | None = None
    error: Exception | None = None
    _mask: Mask | None = None

    def want(self) -> Want:
        """What of the logits it takes."""
        if self.scored_at >= 0:
            return Want(0)
        want = self.sequence.sampler.wanted(self.sequence.tokens)
        return replace(want, mask=self.mask) if self.sequence.constraint is not None and want.k else want

    def mask(self) -> Mask:
        """What the text's constraint allows, asked once; nothing where it fails."""
        if self._mask is None:
            self._mask = self._asked()
        return self._mask

    def settle(self, scores: Scores) -> None:
        """Use the logits. What the device raises goes on; any other failure is this text's own."""
        if self.error is None and scores.ids is not None and scores.values is not None:
            self._choose_short(scores.ids, scores.values, scores.total)
        if self.error is None and self.token is None:
            self.settle_by(scores.full())

    def settle_by(self, logits: Logits) -> None:
        """Use all logits."""
        try:
            if self.scored_at >= 0 and self.sequence.scored is not None:
                self.sequence.scored(self.scored_at, logits)
            if self.chooses:
                mask = self.mask() if self.sequence.constraint is not None else None
                if self.error is None:
                    self.token = self.sequence.sampler.choose(logits, self.sequence.tokens, mask)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the neighbours have no part in it
            self.error = exc

    def _choose_short(self, ids: npt.NDArray[np.int32], values: Logits, total: tuple[float, float] | None) -> None:
        try:
            self.token = self.sequence.sampler.choose_short(ids, values, self.sequence.tokens, total)
        except Exception as exc:  # noqa: BLE001 - as above
            self.error = exc

    def _asked(self) -> Mask:
        constraint, vocab = self.sequence.constraint, self.sequence.sampler.vocab
        try:
            if constraint is not None:
                return constraint.mask()
        except Exception as exc:  # noqa: BLE001 - as above
            self.error = exc
        return np.zeros(-(-vocab // 32), np.int32)


def settle_all(rows: list[Row], steps: Sequence[Scores]) -> None:
    """Every row uses its logits, of which all are there; where many only draw from full lists, they do it together."""
    pairs = list(zip(rows, steps, strict=True))
    drawing = [
        (row, scores)
        for row, scores in pairs
        if row.sequence.sampler.only_draws and scores.ids is not None and scores.ids[-1] >= 0 and row.error is None
    ]
    if len(drawing) >= WORTH_IT:
        tokens = choose_together([row.sequence.sampler for row, _ in drawing], [scores for _, scores in drawing])
        for (row, scores), token in zip(drawing, tokens, strict=True):
            row.token = token
            if token is None:
                row.settle_by(scores.full())
    for row, scores in pairs:
        if row.token is None and row.error is None:
            row.settle(scores)


def in_order(rows: list[Row]) -> tuple[list[Row], list[Want]]:
    """Rows and what they want, as a step takes them: masked ones first, those that want everything last."""
    pairs = sorted(((row, row.want()) for row in rows), key=lambda pair: _place(pair[1]))
    return [row for row, _ in pairs], [want for _, want in pairs]


def _place(want: Want) -> int:
    return 2 if not want.k else int(want.mask is None)
