"""GGUF files of arch `maple` (DeepGrove's Maple): a mixture of experts, and sliding windows in some layers.

The other layers see all positions and do not rotate (NoPE). In the layers with a window only the first
rope.dimension_count elements of a head are rotated; ModelSource has the rows of each query and key head in the order
of formats.rotation.turned_order. An expert's matrices are parts of tensors of three dimensions, [experts, rows,
columns], which ModelSource has as one matrix. Keys and tensors: llama.cpp, src/models/maple.cpp and
conversion/maple.py. A window of llama.cpp holds attention.sliding_window positions, the row's own included; vLLM's
implementers say that the checkpoint's own program sees one more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.unused_keys import check_unused
from bitnet_core.formats.keys import MetadataReader, short
from bitnet_core.formats.rotation import Order, turned_order
from bitnet_core.model.config import Experts, ModelConfig, Windows

ARCHITECTURE = "maple"

_KEYS = frozenset({
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count"),
    *("rope.scaling.type", "attention.sliding_window", "attention.sliding_window_pattern", "swiglu_clamp_exp"),
    *("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count"),
    *("expert_gating_func", "expert_weights_norm", "expert_weights_scale"),
})  # fmt: skip
_MOST_EXPERTS = 1 << 12
_MOST_USED = 1 << 6
_SOFTMAX = 1  # of expert_gating_func
_LIMIT = 7.0
"""swiglu_clamp_exp of files that do not state it, as in llama.cpp."""
_MATRICES = re.compile(r"blk\.\d+\.ffn_(gate|up|down)_exps")


def with_experts(path: Path, keys: MetadataReader, config: ModelConfig) -> ModelConfig:
    """Return the configuration with its experts and windows. Raises ModelError for keys that are unknown or
    contradictory."""
    check_unused(path, keys, ARCHITECTURE, _KEYS)
    if (scaling := keys.text("rope.scaling.type", "none")) != "none":
        raise ModelError(f"{path}: the RoPE scaling {short(scaling)} is not supported for architecture {ARCHITECTURE}")
    rotated = keys.count("rope.dimension_count", config.head_dim, limit=config.head_dim)
    if rotated % 2:
        raise ModelError(f"{path}: rope.dimension_count {rotated} is odd, so RoPE has no pairs")
    return replace(
        config,
        rope_dim=rotated if rotated < config.head_dim else 0,
        rope_theta=keys.real("rope.freq_base_swa", config.rope_theta),
        experts=_experts(path, keys),
        windows=Windows(
            keys.count("attention.sliding_window"),
            tuple(keys.flags("attention.sliding_window_pattern", config.n_layers)),
        ),
    )


def _experts(path: Path, keys: MetadataReader) -> Experts:
    count = keys.count("expert_count", limit=_MOST_EXPERTS)
    used = keys.count("expert_used_count", limit=_MOST_USED)
    if used > count:
        raise ModelError(f"{path}: expert_used_count {used} is more than expert_count {count}")
    if keys.count_or_none("expert_shared_count"):
        raise ModelError(f"{path}: experts that every token uses (expert_shared_count) are not supported")
    if keys.count("expert_gating_func", _SOFTMAX) != _SOFTMAX:
        raise ModelError(f"{path}: only softmax (1) is supported as expert_gating_func")
    if not keys.flag("expert_weights_norm", True):
        raise ModelError(f"{path}: weights of experts without a norm (expert_weights_norm false) are not supported")
    if keys.real("expert_weights_scale", 1.0) != 1:
        raise ModelError(f"{path}: expert_weights_scale other than 1 is not supported")
    return Experts(count, used, keys.real("swiglu_clamp_exp", _LIMIT))


def flattened(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes with those of experts' tensors, [experts, rows, columns], as matrices."""
    count = config.experts.count if config.experts else 0
    return {
        name: (shape[0] * shape[1], shape[2])
        if _MATRICES.fullmatch(name) and len(shape) == 3 and shape[0] == count
        else shape
        for name, shape in shapes.items()
    }


def row_order(config: ModelConfig, name: str) -> Order | None:
    """Return the stored row of each row of a matrix, or element of a vector; None if the stored order is kept."""
    if not config.rope_dim:
        return None
    last = name.rpartition(".")[2]
    if last in ("attn_q_norm", "attn_k_norm"):
        return turned_order(config)
    heads = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}.get(last)
    if heads is None:
        return None
    return (config.head_dim * np.arange(heads)[:, None] + turned_order(config)).reshape(-1)
