"""Sample the next tokens of requests from the rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.request.request import Request
from bitnet_core.engine.sampling.batched import MIN_BATCH, sample_batch
from bitnet_core.engine.sampling.constraint import Mask
from bitnet_core.engine.sampling.logits import Logits, LogitsRequest, TopLogits


@dataclass(slots=True, eq=False)
class SampleRow:
    """A row of a request whose logits are needed. scored_at: its position if request.scored receives its logits, else
    -1. chooses: True if the next token is sampled from it. drafted: number of draft tokens before it; given_mask: mask
    of the request's constraint after these. token, error: the result."""

    request: Request
    scored_at: int = -1
    chooses: bool = True
    token: int | None = None
    error: Exception | None = None
    drafted: int = 0
    given_mask: Mask | None = None

    def logits_request(self) -> LogitsRequest:
        """Return the LogitsRequest of the row."""
        if self.scored_at >= 0:
            return LogitsRequest(0)
        logits_request = self.request.sampler.logits_request(self.request.tokens, self.drafted)
        return (
            replace(logits_request, mask=self.mask)
            if self.request.constraint is not None and logits_request.k
            else logits_request
        )

    def mask(self) -> Mask:
        """Return the mask of the request's constraint, computed once; it allows no token if the constraint fails."""
        if self.given_mask is None:
            self.given_mask = self._compute_mask()
        return self.given_mask

    def apply(self, top_logits: TopLogits) -> None:
        """Sample from the logits. Device errors propagate; any other failure ends this request only."""
        if self.error is None and top_logits.ids is not None and top_logits.values is not None:
            self._choose_from_list(top_logits.ids, top_logits.values, top_logits.total)
        if self.error is None and self.token is None:
            self.apply_logits(top_logits.full())

    def apply_logits(self, logits: Logits) -> None:
        """Sample from all logits of the row."""
        try:
            if self.scored_at >= 0 and self.request.scored is not None:
                self.request.scored(self.scored_at, logits)
            if self.chooses:
                mask = self.mask() if self.request.constraint is not None else None
                if self.error is None:
                    self.token = self.request.sampler.choose(logits, self.request.tokens, mask)
        except Exception as exc:  # noqa: BLE001 - the error of one request must not end the others
            self.error = exc

    def _choose_from_list(self, ids: npt.NDArray[np.int32], values: Logits, total: tuple[float, float] | None) -> None:
        try:
            self.token = self.request.sampler.choose_from_list(ids, values, self.request.tokens, total)
        except Exception as exc:  # noqa: BLE001 - as above
            self.error = exc

    def _compute_mask(self) -> Mask:
        constraint = self.request.constraint
        vocab = self.request.sampler.vocab
        try:
            if constraint is not None:
                return constraint.mask()
        except Exception as exc:  # noqa: BLE001 - as above
            self.error = exc
        return np.zeros(ceil_div(vocab, 32), np.int32)


def apply_all(rows: list[SampleRow], steps: Sequence[TopLogits]) -> None:
    """Apply logits to every row; many rows that only draw from full top-k lists are sampled as one batch."""
    pairs = list(zip(rows, steps, strict=True))
    drawing = [
        (row, top_logits)
        for row, top_logits in pairs
        if row.request.sampler.only_draws
        and top_logits.ids is not None
        and top_logits.ids[-1] >= 0
        and row.error is None
    ]
    if len(drawing) >= MIN_BATCH:
        tokens = sample_batch([row.request.sampler for row, _ in drawing], [top_logits for _, top_logits in drawing])
        for (row, top_logits), token in zip(drawing, tokens, strict=True):
            row.token = token
            if token is None:
                row.apply_logits(top_logits.full())
    for row, top_logits in pairs:
        if row.token is None and row.error is None:
            row.apply(top_logits)


def order_rows(rows: list[SampleRow]) -> tuple[list[SampleRow], list[LogitsRequest]]:
    """Sort rows and their logits requests for a step: masked ones first, those that need all logits last."""
    pairs = sorted(((row, row.logits_request()) for row in rows), key=lambda pair: _place(pair[1]))
    return [row for row, _ in pairs], [logits_request for _, logits_request in pairs]


def _place(logits_request: LogitsRequest) -> int:
    return 2 if not logits_request.k else int(logits_request.mask is None)
