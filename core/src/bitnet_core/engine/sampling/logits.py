"""Logits that sampling requests of a row, and what it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitnet_core.engine.sampling.constraint import Mask

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LogitsRequest:
    """k: number of largest logits, 0 for all. rest: also the log-sum-exp, and possibly all logits afterwards. mask:
    returns the allowed tokens, called once; only with k."""

    k: int
    rest: bool = False
    mask: Callable[[], Mask] | None = None


class TopLogits(NamedTuple):  # made for every row of every step: a dataclass takes five times as long
    """ids, values: the largest logits of one row, among the allowed ones, in falling order, equal ones by rising id; id
    -1 and -inf where fewer are allowed. None where everything was wanted. total: (m, log(sum exp(logit - m))) over all
    allowed ones, m their largest, where the rest was wanted. full: reads all logits f32[V] of the row, whatever the
    mask; until the next step."""

    full: Callable[[], Logits]
    ids: npt.NDArray[np.int32] | None = None
    values: Logits | None = None
    total: tuple[float, float] | None = None
