"""A model in float64 on the host, with activations that are not rounded to int8: it shows the cost of rounding.

Written from the published formulas and not from the kernels. Slow: every matrix is unpacked each time it is used.

    python core/tests/golden/float64_model.py MODEL FILE    # the perplexity of a text, beside `bitnet perplexity`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from bitnet_core.engine.perplexity import perplexity
from bitnet_core.formats.names import signs_name
from bitnet_core.formats.open import open_model
from bitnet_core.model.config import DeltaNet
from bitnet_core.model.rope import factors_name, rope_table
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.tokenizer import load_tokenizer
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.dense import decode_table
from bitnet_hal.reference.float64 import hadamard, sigmoid
from bitnet_hal.reference.ternary import unpack_codes

Array = npt.NDArray[np.float64]

LONGEST = 2048
"""Most tokens of a window: every layer holds all of them."""

_ROWS = 4096
"""Rows of a matrix unpacked in one piece."""
_L2_EPS = 1e-6


class FloatModel:
    """Computes logits as an engine does (`engine.perplexity.Scoring`), without a cache and without generation.

    max_model_len: most tokens of a window: `context`, or the model's own, and at most LONGEST.
    """

    def __init__(self, source: ModelSource, context: int | None = None) -> None:
        self.source, self.config = source, source.config
        self.max_model_len = min(context or self.config.context, LONGEST)

    def score(self, tokens: Sequence[int], use: Callable[[int, npt.NDArray[np.float32]], None], chunk: int = 0) -> None:
        """Call `use(first position, f32[n, V] logits)` for at most `chunk` tokens (0: all) per call."""
        if not 0 < len(tokens) <= self.max_model_len:
            raise UsageError(f"logits are for 1 to {self.max_model_len} tokens, not {len(tokens)}")
        if any(not 0 <= token < self.config.vocab for token in tokens):
            raise UsageError(f"a token is outside 0..{self.config.vocab - 1}")
        hidden = self.hidden(np.asarray(tokens))
        step = chunk or len(tokens)
        for first in range(0, len(tokens), step):
            rows = self._turned(hidden[first : first + step])
            parts = [rows @ part.T for part in self._table("token_embd" if self.config.tied_head else "output")]
            use(first, np.concatenate(parts, axis=1).astype(np.float32))

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits f32[T, V] after every token."""
        found: list[npt.NDArray[np.float32]] = []
        self.score(tokens, lambda _, part: found.append(part))
        return found[0]

    def prediction_logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits f32[T - 1, V] of the prediction head: row t is of tokens t and t + 1."""
        rows = self.prediction_rows(self.hidden(np.asarray(tokens))[:-1], tokens[1:])
        return self._head(rows).astype(np.float32)

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the tokens that the prediction head drafts after all tokens, of which the trunk lacks the last."""
        hidden = self.hidden(np.asarray(tokens[:-1]))
        following = list(tokens[1:])
        for _ in range(count):
            last = self.prediction_rows(hidden, following)[-1:]
            following.append(int(self._head(last).argmax()))
            hidden = np.concatenate([hidden, last])
        return following[-count:]

    def _head(self, rows: Array) -> Array:
        parts = [self._turned(rows) @ part.T for part in self._table("output")]
        return np.concatenate(parts, axis=1)

    def prediction_rows(self, hidden: Array, following: Sequence[int]) -> Array:
        """Return the rows f64[T, H] of the prediction head, normed, from the trunk's and the token after each."""
        embedded = self._embedded(np.asarray(following))
        pair = np.concatenate([self._normed(embedded, "nextn.enorm"), self._normed(hidden, "nextn.hnorm")], axis=1)
        x = self._product(pair, "nextn.eh_proj")
        x = x + self._attention("nextn.", self._normed(x, "nextn.attn_norm"), self._angles(len(hidden)))
        x = x + self._feed_forward("nextn.", self._normed(x, "nextn.ffn_norm"))
        return self._normed(x, "nextn.shared_head_norm" if self.source.has("nextn.shared_head_norm") else "output_norm")

    def hidden(self, tokens: npt.NDArray[np.int64]) -> Array:
        """Return the final hidden rows f64[T, H], normed."""
        config = self.config
        angles = self._angles(len(tokens))
        x = self._embedded(tokens)
        for index in range(config.n_layers):
            layer = f"blk.{index}."
            h = self._normed(x, layer + "attn_norm")
            x = x + (self._delta_net(layer, h) if config.is_delta(index) else self._attention(layer, h, angles))
            x = x + self._feed_forward(layer, self._normed(x, layer + "ffn_norm"))
        return self._normed(x, "output_norm")

    def _angles(self, positions: int) -> Array:
        name = factors_name(self.config, positions)
        factors = self.source.vector(name) if self.source.has(name) else None
        return rope_table(self.config, positions, factors).astype(np.float64)

    def _embedded(self, tokens: npt.NDArray[np.int64]) -> Array:
        config = self.config
        x = np.empty((len(tokens), config.hidden))
        first = 0
        for part in self._table("token_embd"):
            here = (tokens >= first) & (tokens < first + len(part))
            x[here] = part[tokens[here] - first]
            first += len(part)
        return self._signed(hadamard(x, config.hadamard)) if config.hadamard else x

    def _attention(self, layer: str, x: Array, angles: Array) -> Array:
        q, k, v = (self._heads(layer, name, x) for name in ("attn_q", "attn_k", "attn_v"))
        q, k = (self._turned_heads(layer + name, heads, angles) for name, heads in (("attn_q", q), ("attn_k", k)))
        group, future = q.shape[1] // k.shape[1], np.triu(np.ones((len(x), len(x)), bool), 1)
        out = np.empty_like(q)
        for head in range(q.shape[1]):
            scores = q[:, head] @ k[:, head // group].T * self.config.head_dim**-0.5
            scores[future] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, head // group]
        heads = out.reshape(len(x), -1)
        if self.config.sub_norms:
            heads = self._normed(heads, layer + "attn_sub_norm")
        if self.config.delta:
            heads = heads * sigmoid(self._product(x, layer + "attn_gate"))
        return self._product(heads, layer + "attn_output")

    def _delta_net(self, layer: str, x: Array) -> Array:
        net = self.config.delta
        assert net is not None
        qkv = convolved(self._product(x, layer + "attn_qkv"), self._floats(layer + "ssm_conv1d"))
        steps = np.logaddexp(0, x @ self._floats(layer + "ssm_alpha").T + self.source.vector(layer + "ssm_dt"))
        beta = sigmoid(x @ self._floats(layer + "ssm_beta").T)
        heads = delta_rule(net, qkv, np.exp(steps * self.source.vector(layer + "ssm_a")), beta)
        gate = self._product(x, layer + "attn_gate").reshape(heads.shape)
        gated = self._normed(heads, layer + "ssm_norm") * gate * sigmoid(gate)
        return self._product(regrouped(net, gated), layer + "ssm_out")

    def _heads(self, layer: str, name: str, x: Array) -> Array:
        return self._product(x, layer + name).reshape(len(x), -1, self.config.head_dim)

    def _turned_heads(self, name: str, heads: Array, angles: Array) -> Array:
        """Return query or key heads f64[T, heads, d] rotated, and normed before or after it."""
        if not self.config.qk_norm:
            return self._rotated(heads, angles)
        if self.config.qk_norm_after_rope:
            return self._normed(self._rotated(heads, angles), f"{name}_norm")
        return self._rotated(self._normed(heads, f"{name}_norm"), angles)

    def _rotated(self, x: Array, angles: Array) -> Array:
        """Rotate the pairs (j, j + d/2), or (2j, 2j + 1), of x f64[T, heads, d] by angles f64[T, d/2, 2]."""
        half = x.shape[2] // 2
        if self.config.rope_interleaved:
            one, other = slice(0, None, 2), slice(1, None, 2)
        else:
            one, other = slice(0, half), slice(half, None)
        cos, sin = angles[:, None, :, 0], angles[:, None, :, 1]
        out = np.empty_like(x)
        out[..., one] = x[..., one] * cos - x[..., other] * sin
        out[..., other] = x[..., other] * cos + x[..., one] * sin
        return out

    def _feed_forward(self, layer: str, x: Array) -> Array:
        gate, up = (self._product(x, layer + name) for name in ("ffn_gate", "ffn_up"))
        relu2 = self.config.activation == "relu2"
        m = (np.maximum(gate, 0) ** 2 if relu2 else gate / (1 + np.exp(-gate))) * up
        if self.config.sub_norms:
            m = self._normed(m, layer + "ffn_sub_norm")
        return self._product(m, layer + "ffn_down")

    def _normed(self, x: Array, name: str) -> Array:
        mean = (x * x).mean(axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + self.config.norm_eps) * self.source.vector(name))

    def _signed(self, x: Array) -> Array:
        return np.asarray(x * self.source.vector(signs_name(x.shape[1])))

    def _turned(self, x: Array) -> Array:
        """Return x, or its Hadamard transform for a rotated model: the input of the ternary matrices."""
        return hadamard(self._signed(x), self.config.hadamard) if self.config.hadamard else x

    def _floats(self, name: str) -> Array:
        weight = self.source.dense(name)
        return decode_table(weight.data, weight.dtype).astype(np.float64)

    def _product(self, x: Array, name: str) -> Array:
        if name.startswith("nextn."):  # of floats, and not rotated
            return np.asarray(x @ self._floats(name).T)
        if self.config.projection_norms:
            x = self._normed(x, f"{name}_norm_in")
        x = self._turned(x)
        return np.concatenate([x @ part.T for part in _parts(self.source.ternary(name))], axis=1)

    def _table(self, name: str) -> Iterator[Array]:
        """Yield the rows of the embedding or the head in parts f64[n, H]."""
        if self.config.ternary_tables:
            yield from _parts(self.source.ternary(name))
            return
        table = self.source.dense(name)
        for first in range(0, table.rows, _ROWS):
            yield decode_table(table.data[first : first + _ROWS], table.dtype).astype(np.float64)


def _parts(weight: TernaryWeight) -> Iterator[Array]:
    """Yield the rows of a ternary matrix in parts f64[n, columns], n <= _ROWS."""
    scales = weight.scales if weight.scale_kind == "block" else weight.scales.reshape(-1, 1)
    scales = np.broadcast_to(scales, (weight.rows, scales.shape[1]))
    for first in range(0, weight.rows, _ROWS):
        rows = slice(first, first + _ROWS)
        signs = unpack_codes(weight.codes[rows])[:, : weight.columns].astype(np.float64) - 1
        spread = np.repeat(scales[rows], weight.block, axis=1)[:, : weight.columns] if weight.block else scales[rows]
        yield signs * spread


def convolved(x: Array, weight: Array) -> Array:
    """Return silu(y) with y[t, c] = sum_j weight[c, j] x[t - J + 1 + j, c], for x f64[T, C] and weight f64[C, J].

    Inputs before the first are zeros.
    """
    taps = weight.shape[1]
    padded = np.pad(x, ((taps - 1, 0), (0, 0)))
    y = np.einsum("tcj,cj->tc", np.lib.stride_tricks.sliding_window_view(padded, taps, axis=0), weight)
    return np.asarray(y * sigmoid(y))


def delta_rule(net: DeltaNet, qkv: Array, decay: Array, beta: Array) -> Array:
    """Run a gated delta net token by token; Yang et al. 2024 (arXiv 2412.06464) as in Qwen3.5.

    qkv f64[T, channels], convolved; decay and beta f64[T, value_heads]; returns f64[T, value_heads, value_dim].
    S *= decay; S += beta k (v - S^T k)^T; o = S^T q / sqrt(key_dim), with q and k of norm 1.
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
    """Return f64[T, value_width]: heads f64[T, value_heads, value_dim] in the order of the columns of ssm_out."""
    if net.regrouped:
        heads = heads.reshape(len(heads), -1, net.key_heads, net.value_dim).swapaxes(1, 2)
    return heads.reshape(len(heads), -1)


def _unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + _L2_EPS))


def main() -> None:
    """Print the perplexity of a text file with a GGUF file or a folder."""
    parser = argparse.ArgumentParser(description="The perplexity of a text with activations in float64.")
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--stride", type=int, help="tokens scored per window; half the context if not given")
    given = parser.parse_args()
    source = open_model(given.model)
    tokenizer = load_tokenizer(source.tokenizer)
    ids = tokenizer.encode(given.file.read_text(encoding="utf-8"), add_bos=tokenizer.add_bos)
    print(f"{perplexity(FloatModel(source), ids, given.stride):.4f}")


if __name__ == "__main__":
    main()
