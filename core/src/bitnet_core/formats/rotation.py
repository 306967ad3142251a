"""The order of the rows of the query and key projections.

Hugging Face folders and the bitnet architectures rotate pairs (j, j + d/2) of a head; llama GGUF files rotate pairs
(2j, 2j + 1) and store the rows in the matching order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import TernaryWeight

Order = npt.NDArray[np.intp]


def row_order(config: ModelConfig, *, to_interleaved: bool) -> dict[str, Order]:
    """Return the source row of each row of attn_q and attn_k; the two directions are each other's inverse."""
    heads = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}
    shape = (2, config.head_dim // 2) if to_interleaved else (config.head_dim // 2, 2)
    return {
        name: np.arange(count * config.head_dim).reshape(count, *shape).swapaxes(1, 2).reshape(-1)
        for name, count in heads.items()
    }


def reordered(weight: TernaryWeight, order: Order | None) -> TernaryWeight:
    """Return the weight with its rows in this order; unchanged for None."""
    if order is None:
        return weight
    scales = weight.scales if weight.scale_kind == "tensor" else weight.scales[order]
    return replace(weight, rows=len(order), codes=weight.codes[order], scales=scales)
