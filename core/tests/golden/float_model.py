"""A forward pass of Qwen3 and HunYuan in float64, written from the published formulas and not from the kernels.

`logits(source, tokens)` takes the activations as they are. With block=32 it rounds the inputs of every ternary product
to int8 with a scale for each 32 columns, as the kernels do: what is then left between it and a device is f32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_core.formats import dense
from bitnet_core.formats.ternary.codes import unpack
from bitnet_core.model.rope import rope_table
from bitnet_core.model.weights import TernaryWeight

Array = npt.NDArray[np.float64]


def values(weight: TernaryWeight) -> Array:
    """f64[rows, columns] of a ternary matrix."""
    scales = weight.scales.astype(np.float64)
    spread = np.repeat(scales, weight.block, axis=1) if weight.scale_kind == "block" else scales.reshape(-1, 1)
    return (unpack(weight.codes, weight.columns).astype(np.float64) - 1) * spread[:, : weight.columns]


def table(source: Any, name: str) -> Array:
    """f64[vocab, hidden] of the embedding or the head."""
    if source.config.ternary_tables:
        return values(source.ternary(name))
    weight = source.dense(name)
    return dense.decode(weight.data, weight.dtype, weight.columns).astype(np.float64)


def rounded(x: Array, block: int) -> Array:
    """x f64[T, K] as int8 times a scale for each `block` columns: q = round_half_even(x 127 / a), scale a / 127.

    The rounding itself is in the catalogue's f32, for it decides ties: norm weights of few bits make many.
    """
    groups = x.astype(np.float32).reshape(len(x), -1, block)
    largest = np.maximum(np.abs(groups).max(axis=2, keepdims=True), np.float32(1e-20))
    q = np.rint(groups * (np.float32(127) / largest)).astype(np.float64)
    return (q * (largest / np.float32(127))).reshape(x.shape)


def normed(x: Array, weight: npt.NDArray[np.float32], eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def rotated(x: Array, angles: Array) -> Array:
    """Rotation of the pairs (j, j + d/2) of x f64[T, heads, d]; angles f64[T, d/2, 2] are (cos, sin)."""
    cos, sin = angles[:, None, :, 0], angles[:, None, :, 1]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention f64[T, heads * d] of q[T, heads, d] and k, v[T, kv_heads, d]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[2])
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    return np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(len(q), -1)


def logits(
    source: Any,
    tokens: npt.NDArray[np.int32],
    block: int = 0,
    seen: Callable[[str, Array], None] | None = None,
    cache: npt.DTypeLike = np.float64,
) -> Array:
    """f64[T, vocab]. block: columns that share an int8 scale, 0 for float activations. seen(name, x) is called with
    the embedding, with what each layer gives, and with the input of the head ("last"). cache: what keys and values
    are kept as."""
    config = source.config

    def kept(x: Array) -> Array:
        return x.astype(cache).astype(np.float64)

    def product(x: Array, name: str) -> Array:
        return (rounded(x, block) if block else x) @ values(source.ternary(name)).T

    def heads(x: Array) -> Array:
        return x.reshape(len(x), -1, config.head_dim)

    def turned(x: Array, name: str) -> Array:
        gamma = source.vector(name)
        if config.qk_norm_after_rope:
            return normed(rotated(heads(x), angles), gamma, config.norm_eps)
        return rotated(normed(heads(x), gamma, config.norm_eps), angles)

    def norm(x: Array, name: str) -> Array:
        return normed(x, source.vector(name), config.norm_eps)

    angles = rope_table(config, len(tokens)).astype(np.float64)
    x = table(source, "token_embd")[tokens]
    for i in range(config.n_layers):
        if seen:
            seen("embedding" if i == 0 else f"after_layer_{i - 1}", x)
        layer = f"blk.{i}."
        h = norm(x, layer + "attn_norm")
        q, k = (turned(product(h, f"{layer}attn_{n}"), f"{layer}attn_{n}_norm") for n in ("q", "k"))
        v = heads(product(h, layer + "attn_v"))
        weights = source.vector(f"{layer}attn_k_norm") if config.qk_norm_after_rope else 1  # not in the cache
        x = x + product(attention(q, kept(k / weights) * weights, kept(v)), layer + "attn_output")
        h = norm(x, layer + "ffn_norm")
        gate, up = product(h, layer + "ffn_gate"), product(h, layer + "ffn_up")
        x = x + product(gate / (1 + np.exp(-gate)) * up, layer + "ffn_down")
    if seen:
        seen(f"after_layer_{config.n_layers - 1}", x)
    h = norm(x, "output_norm")
    if seen:
        seen("last", h)
    if block and config.ternary_tables:
        h = rounded(h, block)
    return h @ table(source, "token_embd" if config.tied_head else "output").T


def divergence(expected: Array, found: Array) -> Array:
    """KL(expected || found) of each row of logits, in nats."""
    p = softmax(expected.astype(np.float64))
    difference = np.log(p) - np.log(softmax(found.astype(np.float64)))
    return (p * difference).sum(axis=-1)
