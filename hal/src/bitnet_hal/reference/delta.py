"""Reference of the kernels of delta nets and rotated weights: hadamard_rotate, glu, causal_conv1d, gated_delta_rule,
gated_rms_norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from bitnet_hal.kernels.catalogue import SILU
from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference.quantize import F32, Arrays, gated, rms_normalize, sizes


def _rows(a: Arrays, name: str, *shape: int) -> F32:
    """Return the start of a binding in this shape."""
    return a[name][: int(np.prod(shape))].reshape(shape)


def _states(a: Arrays, *shape: int) -> F32:
    """Return the states as f32[sequences, *shape]."""
    return _rows(a, "state", len(a["state"]) // int(np.prod(shape)), *shape)


def walsh_hadamard(x: F32, block: int) -> F32:
    """Return the Hadamard transform of every `block` columns of x f32[T, K], by the fast algorithm."""
    parts = x.reshape(-1, block)
    distance = 1
    while distance < block:
        pairs = parts.reshape(-1, block // (2 * distance), 2, distance)
        parts = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        distance *= 2
    return np.asarray(parts.reshape(x.shape) * np.float32(block**-0.5))


def hadamard_rotate(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y = H(signs * x), or signs * H(x) if INVERSE is 1."""
    rows, width, block = sizes(p, "rows", "width", "block")
    x = _rows(a, "x", rows, width)
    signs = _rows(a, "signs", width)
    turned = signs * walsh_hadamard(x, block) if c["INVERSE"] else walsh_hadamard(signs * x, block)
    _rows(a, "y", rows, width)[:] = turned


def glu(a: Arrays, p: Params, c: Constants) -> None:
    """Compute m = act(gate) * up."""
    rows, width = sizes(p, "rows", "width")
    gate, up = _rows(a, "gate_up", rows, 2, width).swapaxes(0, 1)
    _rows(a, "m", rows, width)[:] = gated(gate, up, c["ACT"])


def _runs(a: Arrays, rows: int) -> Iterator[tuple[int, npt.NDArray[np.int64], bool]]:
    """Yield each sequence of the step, its rows in order, and True if they start at position 0."""
    step = a["step"][: rows * 4].reshape(rows, 4)
    used = step[:, 1] >= 0
    for sequence in np.unique(step[used, 3]):
        mine = np.flatnonzero(used & (step[:, 3] == sequence))
        yield int(sequence), mine, step[mine[0], 1] == 0


def causal_conv1d(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y = silu(sum_j weight[c, j] * the last `taps` inputs of channel c) and keep the last inputs as state."""
    rows, channels, taps = sizes(p, "rows", "channels", "taps")
    x = _rows(a, "x", rows, channels)
    y = _rows(a, "y", rows, channels)
    weight = _rows(a, "weight", channels, taps)
    states = _states(a, taps - 1, channels)
    y[:] = 0
    for sequence, mine, begins in _runs(a, rows):
        if begins:
            states[sequence] = 0
        inputs = np.concatenate([states[sequence], x[mine]])
        total = np.zeros((len(mine), channels), np.float32)
        for tap in range(taps):
            total += weight[:, tap] * inputs[tap : tap + len(mine)]
        y[mine] = total / (np.float32(1) + np.exp(-total))
        states[sequence] = inputs[len(mine) :]


def gated_delta_rule(a: Arrays, p: Params, c: Constants) -> None:
    """Compute S = g S; S += k (beta (v - S^T k))^T; out = S^T q, row by row."""
    rows, heads, groups, key_dim, value_dim = sizes(p, "rows", "n_heads", "n_key_heads", "key_dim", "value_dim")
    keys = groups * key_dim
    qkv = _rows(a, "qkv", rows, 2 * keys + heads * value_dim)
    gates = _rows(a, "gates", rows, 2, heads)
    eps = float(p["eps"])
    repeats = (1, heads // groups, 1)
    q = _unit(qkv[:, :keys].reshape(rows, groups, key_dim), eps) * np.float32(key_dim**-0.5)
    k = _unit(qkv[:, keys : 2 * keys].reshape(rows, groups, key_dim), eps)
    q = np.tile(q, repeats)
    k = np.tile(k, repeats)
    v = qkv[:, 2 * keys :].reshape(rows, heads, value_dim)
    decay = np.exp(_rows(a, "rate", heads) * np.logaddexp(np.float32(0), gates[:, 0] + _rows(a, "dt", heads)))
    beta = np.float32(1) / (np.float32(1) + np.exp(-gates[:, 1]))
    states = _states(a, heads, key_dim, value_dim)
    out = _rows(a, "out", rows, heads, value_dim)
    out[:] = 0
    for sequence, mine, begins in _runs(a, rows):
        state = states[sequence]
        if begins:
            state[:] = 0
        for t in mine:
            state *= decay[t][:, None, None]
            error = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * error[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])


def _unit(x: F32, eps: float) -> F32:
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + np.float32(eps)), np.float32)


def gated_rms_norm(a: Arrays, p: Params, c: Constants) -> None:
    """Compute y = norm(x) * act(gate), with the heads of a group next to each other."""
    rows, heads, dim, groups = sizes(p, "rows", "n_heads", "head_dim", "groups")
    x = _rows(a, "x", rows, heads, dim)
    gate = _rows(a, "gate", rows, heads, dim)
    if c["NORM"]:
        x = rms_normalize(x, a["gamma"][:dim], float(p["eps"]))
    open_ = (gate if c["ACT"] == SILU else np.float32(1)) / (np.float32(1) + np.exp(-gate))
    y = (x * open_).reshape(rows, heads // groups, groups, dim).swapaxes(1, 2)
    _rows(a, "y", rows, heads * dim)[:] = y.reshape(rows, -1)
