"""The order of the rows of q and k.

Hugging Face folders and the bitnet architectures rotate pairs (j, j + d/2) of a head; llama GGUF files rotate pairs
(2j, 2j + 1) and store the rows reordered for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import TernaryWeight

Order = npt.NDArray[np.intp]


def row_order(config: ModelConfig, *, to_interleaved: bool) -> dict[str, Order]:
    """For attn_q and attn_k, the source row of each row after the change of order; each inverts the other."""
    heads = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}
    shape = (2, config.head_dim // 2) if to_interleaved else (config.head_dim // 2, 2)
    return {
        name: np.arange(count * config.head_dim).reshape(count, *shape).swapaxes(1, 2).reshape(-1)
        for name, count in heads.items()
    }


def reordered(weight: TernaryWeight, order: Order | None) -> TernaryWeight:
    """The weight with these of its rows, in this order; itself for None."""
    if order is None:
        return weight
    scales = weight.scales if weight.scale_kind == "tensor" else weight.scales[order]
    return replace(weight, rows=len(order), codes=weight.codes[order], scales=scales)
