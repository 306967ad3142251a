"""GGUF files of arch `qwen35` (Qwen3.5, Bonsai 27B, Bonsai 2): their keys, tensor names and order of rows.

Layers are gated delta nets, except that every `full_attention_interval`-th layer is attention. There attn_q holds for
each head its query rows and then its gate rows, and only the first rope.dimension_count elements of a head are rotated,
in pairs (j, j + rope.dimension_count / 2). ModelSource has the gate as a matrix of its own, attn_gate, and the rows of
each query and key head in an order in which the pairs are (j, j + head_dim / 2), as in other models; products of
queries and keys do not depend on the order. RMSNorm's weights are stored as the factors themselves (1 + the weights of
the checkpoint). Keys and tensors: llama.cpp, src/models/qwen35.cpp and conversion/qwen.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.hadamard import PREFIX, Rotation, is_rotated, read_rotation
from bitnet_core.formats.gguf.prediction_heads import in_heads
from bitnet_core.formats.gguf.unused_keys import check_unused
from bitnet_core.formats.keys import MetadataReader, short
from bitnet_core.formats.names import PREDICTION, matrices
from bitnet_core.formats.rotation import Order, turned_order
from bitnet_core.model.config import DeltaNet, ModelConfig

ARCHITECTURE = "qwen35"

_KEYS = frozenset({
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "rope.dimension_sections"),
    *("rope.scaling.type", "full_attention_interval", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count"),
    *("ssm.time_step_rank", "ssm.inner_size", "nextn_predict_layers"),
})  # fmt: skip
_ROTATED_GROUP_SIZE = 128
"""Columns that share an activation scale by default if weights are rotated: the rotation spreads outliers."""
_MOST_TAPS = 64
_WIDEST_HEAD = 1024
_MOST_HEADS = 1 << 12
_STORED = {"ffn_norm": "post_attention_norm", "ssm_dt": "ssm_dt.bias"}
_HERE = {stored: name for name, stored in _STORED.items()}
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")

T = TypeVar("T")


def with_delta_nets(path: Path, keys: MetadataReader, metadata: Mapping[str, Any], config: ModelConfig) -> ModelConfig:
    """Return the configuration with its delta nets and rotation. Raises ModelError for keys that are unknown or
    contradictory."""
    _check_keys(path, keys)
    delta = _delta(path, keys)
    if not 1 < delta.interval <= config.n_layers:
        raise ModelError(
            f"{path}: full_attention_interval {delta.interval} leaves no delta net, or no attention, among "
            f"{config.n_layers} layers"
        )
    config = replace(config, delta=delta, rope_dim=_rope_dim(path, keys, config.head_dim))
    if not is_rotated(metadata):
        return config
    rotation = rotation_of(path, metadata, config)
    return replace(
        config,
        hadamard=rotation.block,
        delta=replace(delta, regrouped=rotation.regrouped),
        activation_group_size=_ROTATED_GROUP_SIZE,
    )


def rotation_of(path: Path, metadata: Mapping[str, Any], config: ModelConfig) -> Rotation:
    """Read the rotation from the `prism.hadamard` keys of a file."""
    shapes = matrices(config)
    names = {f"{stored_name(config, name)}.weight" for name in shapes} | {"output.weight"}
    keys = MetadataReader(path, metadata, f"{ARCHITECTURE}.")
    widths = {columns for _, columns in shapes.values()} | {config.hidden}
    return read_rotation(path, metadata, names, widths, lambda name: in_heads(keys, name))


def rotated_heads(path: Path, metadata: Mapping[str, Any], keys: MetadataReader) -> bool:
    """Return whether a matrix of a prediction head is rotated."""
    names = MetadataReader(path, metadata, PREFIX)
    return any(in_heads(keys, name) for key in ("weight_names", "inverse_weight_names") for name in names.names(key))


def _check_keys(path: Path, keys: MetadataReader) -> None:
    """Raise ModelError for a key of the architecture that is unknown, or whose value is not supported."""
    check_unused(path, keys, ARCHITECTURE, _KEYS)
    if (scaling := keys.text("rope.scaling.type", "none")) != "none":
        raise ModelError(f"{path}: the RoPE scaling {short(scaling)} is not supported for architecture {ARCHITECTURE}")


def _delta(path: Path, keys: MetadataReader) -> DeltaNet:
    """Read the sizes of the delta nets. Raises ModelError if they contradict each other."""
    heads, groups = (
        keys.count("ssm.time_step_rank", limit=_MOST_HEADS),
        keys.count("ssm.group_count", limit=_MOST_HEADS),
    )
    inner = keys.count("ssm.inner_size")
    if heads % groups or inner % heads:
        raise ModelError(
            f"{path}: ssm.inner_size {inner}, ssm.time_step_rank {heads} and ssm.group_count {groups} must each be a "
            "multiple of the next"
        )
    if inner // heads > _WIDEST_HEAD:
        raise ModelError(f"{path}: value heads of {inner // heads} elements; at most {_WIDEST_HEAD} are supported")
    return DeltaNet(
        interval=keys.count("full_attention_interval"),
        conv=_taps(path, keys),
        key_heads=groups,
        value_heads=heads,
        key_dim=keys.count("ssm.state_size", limit=_WIDEST_HEAD),
        value_dim=inner // heads,
    )


def _taps(path: Path, keys: MetadataReader) -> int:
    taps = keys.count("ssm.conv_kernel", limit=_MOST_TAPS)
    if taps < 2:
        raise ModelError(f"{path}: ssm.conv_kernel is 1, which is not a convolution")
    return taps


def _rope_dim(path: Path, keys: MetadataReader, head_dim: int) -> int:
    """Return the number of rotated elements of a head.

    In text, all sections carry the same position, so only their sum counts.
    """
    rotated = keys.count("rope.dimension_count", head_dim, limit=head_dim)
    if rotated % 2:
        raise ModelError(f"{path}: rope.dimension_count {rotated} is odd, so RoPE has no pairs")
    sections = keys.numbers("rope.dimension_sections")
    if sections and (min(sections) < 0 or sum(sections) != rotated // 2):
        raise ModelError(f"{path}: rope.dimension_sections {short(sections)} do not add up to {rotated // 2} pairs")
    return rotated


def stored_name(config: ModelConfig, name: str) -> str:
    """Return the name in a file, without ".weight", of the tensor that ModelSource calls `name`."""
    match = _LAYER.fullmatch(name)
    if not match:
        return name
    last = match[2]
    if last == "attn_gate" and not config.is_delta(int(match[1])):
        last = "attn_q"
    return f"blk.{match[1]}.{_STORED.get(last, last)}"


def renamed(config: ModelConfig, tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the tensors of a file by ModelSource's names; attention's gate is added under its own name, with the
    tensor that it shares with the queries."""
    found: dict[str, T] = {}
    for stored, tensor in tensors.items():
        match = _LAYER.fullmatch(stored)
        name = f"blk.{match[1]}.{_HERE.get(match[2], match[2])}" if match else stored
        found[name if stored_name(config, name) == stored else f"{stored} (unused)"] = tensor
        if match and match[2] == "attn_q":
            found[f"blk.{match[1]}.attn_gate"] = tensor
    return found


def shapes(path: Path, config: ModelConfig, tensors: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `renamed` tensors after `row_order`. Raises ModelError if queries and gates do not fill
    their tensor."""
    whole, half = (2 * config.q_width, config.hidden), (config.q_width, config.hidden)
    found = dict(tensors)
    for name, shape in tensors.items():
        if name.endswith((".attn_q", ".attn_gate")) and row_order(config, name) is not None:
            if shape != whole:
                raise ModelError(
                    f"{path}: tensor {stored_name(config, name)!r} has the shape {list(shape)}; queries and gates "
                    f"need {list(whole)}"
                )
            found[name] = half
    return found


def row_order(config: ModelConfig, name: str) -> Order | None:
    """Return the stored row of each row of a matrix, or element of a vector; None if the stored order is kept."""
    match = _LAYER.fullmatch(name)
    if match and config.is_delta(int(match[1])):
        return None
    last = match[2] if match else name.removeprefix(PREDICTION)
    dim, heads, head = config.head_dim, np.arange(config.n_heads)[:, None], turned_order(config)
    orders = {
        "attn_q": 2 * dim * heads + head,
        "attn_gate": 2 * dim * heads + dim + np.arange(dim),
        "attn_k": dim * np.arange(config.n_kv_heads)[:, None] + head,
        "attn_q_norm": head,
        "attn_k_norm": head,
    }
    order = orders.get(last)
    return None if order is None else order.reshape(-1)
