"""A tiny model of DeepGrove's Maple: random weights from a seed, and its forward pass in float64, written from the
formulas of llama.cpp's src/models/maple.cpp and not from the product's kernels.

No class of transformers has such layers. `logits` takes the activations as they are; with block=32 it rounds the inputs
of every ternary product to int8 with a scale for each 32 columns, as the kernels do.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """Sizes and rules; tests change one of them and expect other logits."""

    layers: int = 2
    hidden: int = 256
    ffn: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rope_dim: int = 32
    theta: float = 10000.0
    vocab: int = 264
    context: int = 512
    eps: float = 1e-6
    experts: int = 5
    used: int = 2
    limit: float = 0.5
    window: int = 24
    windowed: tuple[bool, ...] = (True, False)
    rotated: tuple[bool, ...] = (True, False)
    softmax_of_chosen: bool = True
    seed: int = 5

    def matrices(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the ternary matrices of a layer, those of experts with three dimensions."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        own = {
            "attn_q": (q, self.hidden),
            "attn_k": (kv, self.hidden),
            "attn_v": (kv, self.hidden),
            "attn_output": (self.hidden, q),
            "ffn_gate_exps": (self.experts, self.ffn, self.hidden),
            "ffn_up_exps": (self.experts, self.ffn, self.hidden),
            "ffn_down_exps": (self.experts, self.hidden, self.ffn),
        }
        return {f"blk.{layer}.{name}": shape for name, shape in own.items()}

    def draw(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def signs(self, name: str) -> npt.NDArray[np.int8]:
        """-1, 0 and 1 in equal shares."""
        shape = self.matrices(int(name.split(".")[1]))[name]
        return self.draw(name).integers(-1, 2, shape, np.int8)

    def scales(self, name: str) -> npt.NDArray[np.float16]:
        """One scale for each row."""
        *rows, columns = self.matrices(int(name.split(".")[1]))[name]
        return (self.draw(name + ".scale").uniform(0.7, 1.7, rows) * columns**-0.5).astype(np.float16)

    def table(self, name: str) -> npt.NDArray[np.float16]:
        rows = self.vocab if name in ("token_embd", "output") else self.experts
        spread = {"token_embd": 1.0, "output": 0.1}.get(name, 2 * self.hidden**-0.5)
        return (self.draw(name).standard_normal((rows, self.hidden)) * spread).astype(np.float16)

    def norm(self, name: str) -> npt.NDArray[np.float32]:
        size = self.head_dim if name.endswith(("q_norm", "k_norm")) else self.hidden
        return self.draw(name).uniform(0.5, 1.5, size).astype(np.float32)


def rounded(x: Array, block: int) -> Array:
    """x f64[T, K] as int8 times a scale for each `block` columns; the rounding is in f32, for it decides ties."""
    groups = x.astype(np.float32).reshape(len(x), -1, block)
    largest = np.maximum(np.abs(groups).max(axis=2, keepdims=True), np.float32(1e-20))
    q = np.rint(groups * (np.float32(127) / largest)).astype(np.float64)
    return (q * (largest / np.float32(127))).reshape(x.shape)


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


class Forward:
    """A forward pass over the tokens of one text."""

    def __init__(self, shape: Shape, block: int = 0) -> None:
        self.shape, self.block = shape, block
        self.matrices = {
            name: shape.signs(name) * shape.scales(name).astype(np.float64)[..., None]
            for layer in range(shape.layers)
            for name in shape.matrices(layer)
        }

    def normed(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.shape.eps) * self.shape.norm(name)

    def product(self, x: Array, name: str, expert: int | None = None) -> Array:
        matrix = self.matrices[name] if expert is None else self.matrices[name][expert]
        return (rounded(x, self.block) if self.block else x) @ matrix.T

    def turned(self, x: Array) -> Array:
        """x f64[T, heads, d] with the pairs (j, j + rope_dim / 2) of its first rope_dim elements rotated."""
        half = self.shape.rope_dim // 2
        angles = np.arange(len(x))[:, None] * self.shape.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half : 2 * half]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)

    def attention(self, x: Array, layer: int) -> Array:
        shape, prefix = self.shape, f"blk.{layer}.attn_"
        h = self.normed(x, prefix + "norm")
        q, k, v = (self.product(h, prefix + n).reshape(len(x), -1, shape.head_dim) for n in "qkv")
        q, k = self.normed(q, prefix + "q_norm"), self.normed(k, prefix + "k_norm")
        if shape.rotated[layer]:
            q, k = self.turned(q), self.turned(k)
        k, v = (np.repeat(y, shape.heads // shape.kv_heads, axis=1) for y in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(shape.head_dim)
        behind = np.arange(len(x))[:, None] - np.arange(len(x))
        seen = (behind >= 0) & ((behind < shape.window) | (not shape.windowed[layer]))
        mixed = np.einsum("hqk,khd->qhd", softmax(np.where(seen, scores, -np.inf)), v)
        return self.product(mixed.reshape(len(x), -1), prefix + "output")

    def experts(self, x: Array, layer: int) -> Array:
        shape, prefix = self.shape, f"blk.{layer}.ffn_"
        h = self.normed(x, prefix + "norm")
        logits = h @ shape.table(prefix + "gate_inp").T.astype(np.float64)
        chosen = np.argsort(-logits, axis=1)[:, : shape.used]
        weights = np.take_along_axis(softmax(logits), chosen, axis=1)
        if shape.softmax_of_chosen:
            weights /= weights.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for t in range(len(x)):
            row = h[t : t + 1]
            for expert, weight in zip(chosen[t].tolist(), weights[t], strict=True):
                gate = np.minimum(self.product(row, prefix + "gate_exps", expert), shape.limit)
                up = np.clip(self.product(row, prefix + "up_exps", expert), -shape.limit, shape.limit)
                m = gate / (1 + np.exp(-gate)) * up
                out[t] += weight * self.product(m, prefix + "down_exps", expert)[0]
        return out

    def logits(self, tokens: npt.NDArray[np.int32]) -> Array:
        """f64[T, vocab]"""
        x = self.shape.table("token_embd").astype(np.float64)[tokens]
        for layer in range(self.shape.layers):
            x = x + self.attention(x, layer)
            x = x + self.experts(x, layer)
        return self.normed(x, "output_norm") @ self.shape.table("output").T.astype(np.float64)
