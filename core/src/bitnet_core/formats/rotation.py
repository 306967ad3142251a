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


def turned_order(config: ModelConfig) -> Order:
    """Return the stored element of each element of a head whose first rope_dim elements are rotated, as pairs (j, j +
    rope_dim / 2), in the order in which the pairs are (j, j + head_dim / 2). Products of queries and keys do not
    depend on the order."""
    dim = config.head_dim
    pairs = config.rotary_pairs
    first = np.arange(pairs)
    rest = np.arange(2 * pairs, dim)
    return np.concatenate([first, rest[: dim // 2 - pairs], first + pairs, rest[dim // 2 - pairs :]])


def reordered(weight: TernaryWeight, order: Order | None) -> TernaryWeight:
    """Return the weight with its rows in this order; unchanged for None."""
    if order is None:
        return weight
    scales = weight.scales if weight.scale_kind == "tensor" else weight.scales[order]
    return replace(weight, rows=len(order), codes=weight.codes[order], scales=scales)
