"""Which tokens may follow: masks of a grammar, and what logits become under them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.int32]
"""i32[ceil(V / 32)]: bit n % 32 of element n // 32 is set where token n is allowed; bits past V, and elements past
those, do not count."""


class Constraint(Protocol):
    """Follows one text in the making."""

    def mask(self) -> Mask:
        """What may come next, end tokens included where the text may end. Raises what ends the text with an error."""

    def accept(self, token: int) -> bool:
        """Take a token in; False if nothing may follow it but the end."""


def masked(logits: npt.NDArray[np.float32], mask: Mask) -> npt.NDArray[np.float32]:
    """f32[V]: the logits of the allowed tokens, -inf elsewhere."""
    bits = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
    return np.where(bits.view(np.bool_), logits, np.float32("-inf"))


def log_sum_exp(logits: npt.NDArray[np.float32]) -> float:
    """Natural log of the sum of exp of f32[V] logits, of which some may be -inf."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    return float(largest + np.log(np.exp(wide - largest).sum()))
