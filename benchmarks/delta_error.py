"""Measure the error of a device's gated_delta_rule against float64 after thousands of positions, computed in steps.

    python benchmarks/delta_error.py [--device cuda] [--positions 8192] [--rows 512] [--heads 6]

Errors are Frobenius norms of differences, relative to those of what float64 gives: of all outputs, of the last 64, and
of the state after the last position. Decays are drawn so that heads remember from about one position to thousands.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, View, whole
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher

EPS = 1e-6
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """Sizes and inputs of one sequence, in the kernel's layout."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    qkv: npt.NDArray[np.float32]
    gates: npt.NDArray[np.float32]
    rate: npt.NDArray[np.float32]
    dt: npt.NDArray[np.float32]


def drawn(positions: int, heads: int, key_heads: int, key_dim: int, value_dim: int) -> Rule:
    """Return random inputs. All keys have a common part, as chunks of independent keys are well conditioned."""
    rng = np.random.default_rng(1)
    width = 2 * key_heads * key_dim + heads * value_dim
    qkv = rng.standard_normal((positions, width), np.float32) + rng.standard_normal(width).astype(np.float32)
    gates = rng.standard_normal((positions, 2 * heads), np.float32)
    rate = -np.exp(np.linspace(np.log(1e-3), 0, heads)).astype(np.float32)
    return Rule(heads, key_heads, key_dim, value_dim, qkv, gates, rate, rng.standard_normal(heads).astype(np.float32))


def exact(rule: Rule) -> tuple[F64, F64]:
    """Return the outputs f64[positions, heads, value_dim] and the state f64[heads, key_dim, value_dim], row by row."""
    qkv, gates = rule.qkv.astype(np.float64), rule.gates.astype(np.float64)
    rows, keys = len(qkv), rule.key_heads * rule.key_dim
    parts = [part.reshape(rows, rule.key_heads, rule.key_dim) for part in (qkv[:, :keys], qkv[:, keys : 2 * keys])]
    units = [part / np.sqrt((part * part).sum(axis=2, keepdims=True) + EPS) for part in parts]
    q, k = (np.tile(unit, (1, rule.heads // rule.key_heads, 1)) for unit in units)
    v = qkv[:, 2 * keys :].reshape(rows, rule.heads, rule.value_dim)
    decay = np.exp(rule.rate * np.logaddexp(0, gates[:, : rule.heads] + rule.dt))
    beta = 1 / (1 + np.exp(-gates[:, rule.heads :]))
    state, out = np.zeros((rule.heads, rule.key_dim, rule.value_dim)), np.empty(v.shape)
    for t in range(rows):
        state *= decay[t][:, None, None]
        error = beta[t][:, None] * (v[t] - np.matmul(k[t][:, None], state)[:, 0])
        state += k[t][:, :, None] * error[:, None]
        out[t] = np.matmul(q[t][:, None], state)[:, 0] * rule.key_dim**-0.5
    return out, state


def computed(device: Device, rule: Rule, rows: int) -> tuple[F64, F64]:
    """Return the outputs and the state that a device computes, `rows` rows per step."""
    launcher, spec = Launcher(device), CATALOGUE["gated_delta_rule"]
    shape = {"n_heads": rule.heads, "n_key_heads": rule.key_heads, "key_dim": rule.key_dim, "value_dim": rule.value_dim}
    rate, dt = (_put(device, values) for values in (rule.rate, rule.dt))
    state = np.zeros((rule.heads, rule.key_dim, rule.value_dim), np.float32)
    held = _put(device, state)
    outs = []
    for first in range(0, len(rule.qkv), rows):
        qkv, gates = rule.qkv[first : first + rows], rule.gates[first : first + rows]
        step, out = np.zeros((len(qkv), 4), np.int32), np.zeros((len(qkv), rule.heads, rule.value_dim), np.float32)
        step[:, 1] = np.arange(first, first + len(qkv))
        views = [_put(device, qkv), _put(device, gates), rate, dt, _put(device, step), held, _put(device, out)]
        launch = launcher.prepare(spec, {"rows": len(qkv), **shape, "eps": EPS}, views)
        device.launch(launch.kernel, launch.grid, launch.views, launch.params)
        outs.append(_taken(device, views[-1], out))
        for view in (views[0], views[1], views[4], views[6]):
            device.free(view.buffer)
    return np.concatenate(outs), _taken(device, held, state)


def _put(device: Device, values: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> View:
    view = whole(device.alloc(values.nbytes))
    device.upload(view, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return view


def _taken(device: Device, view: View, like: npt.NDArray[np.float32]) -> F64:
    device.download(view, like.reshape(-1).view(np.uint8).data)
    return like.astype(np.float64)


def errors(device: Device, rule: Rule, rows: int) -> dict[str, float]:
    """Return the relative errors of the outputs and of the state."""
    (out, state), (right, kept) = computed(device, rule, rows), exact(rule)
    pairs = {"outputs": (out, right), "last 64 outputs": (out[-64:], right[-64:]), "state": (state, kept)}
    return {name: float(np.linalg.norm(a - b) / np.linalg.norm(b)) for name, (a, b) in pairs.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    for name, default in (("positions", 8192), ("rows", 512), ("heads", 6), ("key-heads", 2), ("dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    opened, _ = open_device(options.device)
    sizes = options.heads, options.key_heads, options.dim, options.dim
    for name, error in errors(opened, drawn(options.positions, *sizes), options.rows).items():
        print(f"{opened.info.request}: relative error of {name} after {options.positions} positions: {error:.2e}")
    opened.close()
