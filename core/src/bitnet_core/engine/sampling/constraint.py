"""Constraints on the next token: token masks, and logits under a mask."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.int32]
"""i32[ceil(V / 32)]: bit n % 32 of element n // 32 is set if token n is allowed; bits after V and further elements
are ignored."""


class Constraint(Protocol):
    """A state machine that follows the output of one request."""

    def mask(self) -> Mask:
        """Return the allowed next tokens, end tokens included if the output may end here. An exception ends the
        request."""

    def accept(self, token: int) -> bool:
        """Advance by one token; returns False if only the end may follow it."""

    def copy(self) -> Constraint:
        """Return an independent copy in the same state, to follow draft tokens."""


def masked(logits: npt.NDArray[np.float32], mask: Mask) -> npt.NDArray[np.float32]:
    """Return f32[V]: the logits of the allowed tokens, -inf for all others."""
    bits = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
    return np.where(bits.view(np.bool_), logits, np.float32("-inf"))


def allows(mask: Mask, token: int) -> bool:
    """Return True if a mask allows the token."""
    return bool(int(mask.view(np.uint32)[token // 32]) >> token % 32 & 1)


def log_sum_exp(logits: npt.NDArray[np.float32]) -> float:
    """Return log(sum(exp(logits))) of f32[V] logits, some of which may be -inf."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    return float(largest + np.log(np.exp(wide - largest).sum()))
