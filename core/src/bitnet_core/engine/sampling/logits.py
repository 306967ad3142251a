"""Logits of a row: the request by the sampler, and the result."""

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
    """The logits that a row needs. k: number of largest logits, 0 for all. rest: True if the log-sum-exp is needed too,
    and possibly all logits afterwards. mask: returns the allowed tokens, called once; only with k."""

    k: int
    rest: bool = False
    mask: Callable[[], Mask] | None = None


class TopLogits(NamedTuple):  # created for every row of every step: a dataclass takes five times as long
    """The largest logits of one row. ids, values: of the allowed tokens, descending, equal ones by ascending id;
    padded with id -1 and -inf if fewer are allowed; None if all logits were requested. total: (m, log(sum exp(logit -
    m))) over all allowed tokens, m their largest, if `rest` was requested. full: reads all logits f32[V] of the row,
    regardless of the mask; valid until the next step."""

    full: Callable[[], Logits]
    ids: npt.NDArray[np.int32] | None = None
    values: Logits | None = None
    total: tuple[float, float] | None = None
