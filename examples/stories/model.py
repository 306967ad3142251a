"""The BitNet b1.58 architecture of 2B-4T in PyTorch, small, for training.

One class serves both models: with `ternary` set, every linear layer inside the blocks is quantised on the way forward
(weights to absmean ternary, activations to int8 per token) and gets its gradient through the rounding unchanged
(straight-through estimator, Ma et al. 2024, "The Era of 1-bit LLMs"); without it the same layers run in full precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name everybody knows)


@dataclass(frozen=True)
class Shape:
    """The sizes of the model; every width is a multiple of 256."""

    vocab: int = 2048
    hidden: int = 512
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 768
    context: int = 1024
    bos: int = 2043  # token that begins a document; attention does not cross it
    rope_theta: float = 500000.0
    eps: float = 1e-5


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return ternary values in {-1, 0, 1} and their scale: scale = max(mean|W|, 1e-5), t = clip(round_even(W /
    scale))."""
    scale = weight.abs().mean().clamp(min=1e-5)
    return (weight / scale).round().clamp(-1, 1), scale


def quantise_activation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values per token and their scale: s = 127 / max(absmax, 1e-5), clip(round_even(x s), -128, 127)."""
    scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return (x * scale).round().clamp(-128, 127), scale


def straight_through(rounded: Tensor, x: Tensor) -> Tensor:
    """Return `rounded`, with the gradient of x."""
    return x + (rounded - x).detach()


class Linear(nn.Module):
    """A linear layer y = W x without bias, in f32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)

    def forward(self, x: Tensor, ternary: bool) -> Tensor:
        if not ternary:
            return F.linear(x, self.weight).float()
        values, scale = quantise_weight(self.weight.detach())
        codes, token_scale = quantise_activation(x.detach())
        # The matmul sees small integers only, which are exact in bf16 too; both scales come after it.
        y = F.linear(straight_through(codes, x * token_scale), straight_through(values, self.weight / scale))
        return y.float() * (scale / token_scale)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE, half-split: pairs (j, j + head_dim / 2). x is [batch, heads, time, head_dim]."""
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.shape = shape
        self.q, self.k, self.v = (Linear(shape.hidden, n) for n in (width, kv_width, kv_width))
        self.o = Linear(width, shape.hidden)
        self.gate, self.up = Linear(shape.hidden, shape.ffn), Linear(shape.hidden, shape.ffn)
        self.down = Linear(shape.ffn, shape.hidden)
        self.attn_norm, self.attn_sub_norm, self.ffn_norm, self.ffn_sub_norm = (
            nn.Parameter(torch.ones(n)) for n in (shape.hidden, width, shape.hidden, shape.ffn)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, ternary: bool) -> Tensor:
        eps, (batch, time, _) = self.shape.eps, x.shape
        heads, kv, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        h = rms_norm(x, self.attn_norm, eps)
        q, k, v = (
            linear(h, ternary).view(batch, time, n, dim).transpose(1, 2)
            for linear, n in ((self.q, heads), (self.k, kv), (self.v, kv))
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        o = o.transpose(1, 2).reshape(batch, time, heads * dim).float()
        x = x + self.o(rms_norm(o, self.attn_sub_norm, eps), ternary)
        h = rms_norm(x, self.ffn_norm, eps)
        m = F.relu(self.gate(h, ternary)).square() * self.up(h, ternary)
        down: Tensor = self.down(rms_norm(m, self.ffn_sub_norm, eps), ternary)
        return x + down


class Model(nn.Module):
    """A decoder with the embedding tied to the output head; neither is quantised."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocab, shape.hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.Parameter(torch.ones(shape.hidden))
        frequency = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angle = torch.outer(torch.arange(shape.context, dtype=torch.float32), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor, ternary: bool) -> Tensor:
        """Return logits [batch, time, vocab] of tokens [batch, time]; a row may hold several documents."""
        x = F.embedding(tokens, self.embedding)
        time = tokens.shape[1]
        document = (tokens == self.shape.bos).cumsum(1)
        same = document[:, :, None] == document[:, None, :]
        mask = (same & torch.ones(time, time, dtype=torch.bool, device=tokens.device).tril())[:, None]
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time], mask, ternary)
        return F.linear(rms_norm(x, self.output_norm, self.shape.eps), self.embedding)
