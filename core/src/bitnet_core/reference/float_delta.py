"""A gated delta net in float64, token by token; formulas of Yang et al. 2024 (arXiv 2412.06464) as in Qwen3.5."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from bitnet_hal.reference.float64 import sigmoid

from bitnet_core.model.config import DeltaNet

Array = npt.NDArray[np.float64]

_L2_EPS = 1e-6


def convolved(x: Array, weight: Array) -> Array:
    """silu(y), y[t, c] = sum_j weight[c, j] x[t - J + 1 + j, c], for x f64[T, C], weight f64[C, J]; zeros before x."""
    taps = weight.shape[1]
    padded = np.pad(x, ((taps - 1, 0), (0, 0)))
    y = np.einsum("tcj,cj->tc", np.lib.stride_tricks.sliding_window_view(padded, taps, axis=0), weight)
    return np.asarray(y * sigmoid(y))


def delta_rule(net: DeltaNet, qkv: Array, decay: Array, beta: Array) -> Array:
    """f64[T, value_heads, value_dim] from convolved qkv f64[T, channels]; decay and beta f64[T, value_heads].

    S *= decay; S += beta k (v - S^T k)^T; o = S^T q / sqrt(key_dim), with q and k of length 1.
    """
    q, k, v = np.split(qkv, [net.key_width, 2 * net.key_width], axis=1)
    q, k = (_unit(part.reshape(len(qkv), net.key_heads, net.key_dim)) for part in (q, k))
    repeats = net.value_heads // net.key_heads
    q, k = (np.tile(part, (1, repeats, 1)) for part in (q / np.sqrt(net.key_dim), k))  # head h reads h % key_heads
    v = v.reshape(len(qkv), net.value_heads, net.value_dim)
    state = np.zeros((net.value_heads, net.key_dim, net.value_dim))
    out = np.empty_like(v)
    for t in range(len(qkv)):
        state *= decay[t][:, None, None]
        error = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state += (beta[t][:, None] * k[t])[:, :, None] * error[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out


def regrouped(net: DeltaNet, heads: Array) -> Array:
    """f64[T, value_width]: the heads of f64[T, value_heads, value_dim] in the order in which ssm_out takes them."""
    if net.regrouped:
        heads = heads.reshape(len(heads), -1, net.key_heads, net.value_dim).swapaxes(1, 2)
    return heads.reshape(len(heads), -1)


def _unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + _L2_EPS))
