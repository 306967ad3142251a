"""The shapes of synthetic models: those of published ones, and tiny ones of the same kinds."""

from __future__ import annotations

from dataclasses import replace

from bitnet_core.model.config import DeltaNet, Experts, ModelConfig, Pooling, Windows

_BITNET = ModelConfig(
    arch="bitnet-b1.58",
    name="synthetic 2B-4T",
    n_layers=30,
    hidden=2560,
    ffn=6912,
    n_heads=20,
    n_kv_heads=5,
    head_dim=128,
    vocab=128256,
    context=4096,
    norm_eps=1e-5,
    rope_theta=500000.0,
    activation="relu2",
    sub_norms=True,
    tied_head=True,
)

# Qwen3's shape in Ternary Bonsai: all matrices and tables are ternary, with a scale per 128 columns.
_BONSAI = replace(
    _BITNET,
    arch="qwen3",
    name="synthetic Ternary Bonsai 8B",
    n_layers=36,
    hidden=4096,
    ffn=12288,
    n_heads=32,
    n_kv_heads=8,
    vocab=151936,
    vocab_tokens=151669,
    context=65536,
    norm_eps=1e-6,
    rope_theta=1e6,
    activation="silu",
    sub_norms=False,
    tied_head=False,
    qk_norm=True,
    activation_group_size=32,
    ternary_tables=True,
)

# Qwen3.5's shape in Bonsai 2: gated delta nets, and ternary weights that are rotated.
BONSAI2 = replace(
    _BONSAI,
    arch="qwen35",
    name="synthetic Bonsai 2 27B",
    n_layers=64,
    hidden=5120,
    ffn=17408,
    n_heads=24,
    n_kv_heads=4,
    head_dim=256,
    vocab=248320,
    vocab_tokens=0,
    context=262144,
    rope_theta=1e7,
    rope_dim=64,
    delta=DeltaNet(4, 4, 16, 48, 128, 128, regrouped=True),
    hadamard=1024,
    activation_group_size=128,
)

# The shape of Microsoft's BitNet-embedding 0.6B: Qwen3 with a norm before each matrix, pooled at the last token.
_EMBEDDING = replace(
    _BITNET,
    arch="qwen3",
    name="synthetic BitNet-embedding 0.6B",
    n_layers=28,
    hidden=1024,
    ffn=3072,
    n_heads=16,
    n_kv_heads=8,
    vocab=151936,
    context=32768,
    norm_eps=1e-6,
    rope_theta=1e6,
    activation="silu",
    sub_norms=False,
    qk_norm=True,
    projection_norms=True,
    pooling=Pooling("last"),
)

# A mixture of experts like Maple 20B: its layers, experts and windows; the number of heads is an assumption.
_MAPLE = replace(
    _BONSAI,
    arch="maple",
    name="synthetic Maple 20B",
    n_layers=24,
    hidden=2048,
    ffn=512,
    n_heads=16,
    n_kv_heads=4,
    context=32768,
    rope_dim=64,
    ternary_tables=False,
    experts=Experts(256, 8, 7.0),
    windows=Windows(512, tuple(layer % 4 != 3 for layer in range(24))),
)

_TINY_BONSAI = replace(
    _BONSAI,
    name="synthetic tiny Ternary Bonsai",
    n_layers=2,
    hidden=256,
    ffn=384,
    n_heads=6,
    n_kv_heads=2,
    head_dim=64,
    vocab=333,
    vocab_tokens=300,
    context=512,
)

SHAPES = {
    "bonsai-8b": _BONSAI,
    "bonsai-4b": replace(
        _BONSAI, name="synthetic Ternary Bonsai 4B", hidden=2560, ffn=9728, tied_head=True, context=32768
    ),
    "bonsai-1.7b": replace(
        _BONSAI,
        name="synthetic Ternary Bonsai 1.7B",
        n_layers=28,
        hidden=2048,
        ffn=6144,
        n_heads=16,
        tied_head=True,
        context=32768,
    ),
    "bonsai-tiny": _TINY_BONSAI,
    "bonsai2-27b": BONSAI2,
    "bonsai-27b": replace(
        BONSAI2,
        name="synthetic Bonsai 27B",
        delta=DeltaNet(4, 4, 16, 48, 128, 128, regrouped=False),
        hadamard=0,
        activation_group_size=32,
    ),
    "bonsai2-tiny": replace(
        _TINY_BONSAI,
        arch=BONSAI2.arch,
        name="synthetic tiny Bonsai 2",
        n_layers=4,
        rope_theta=BONSAI2.rope_theta,
        rope_dim=16,
        delta=DeltaNet(2, 4, 2, 6, 32, 64, regrouped=True),
        hadamard=128,
        activation_group_size=128,
    ),
    "maple-20b": _MAPLE,
    "maple-tiny": replace(
        _TINY_BONSAI,
        arch=_MAPLE.arch,
        name="synthetic tiny Maple",
        ffn=128,
        rope_dim=32,
        experts=Experts(8, 3, 7.0),
        windows=Windows(40, (True, False)),
    ),
    "2b4t": _BITNET,
    "embedding-0.6b": _EMBEDDING,
    "embedding-tiny": replace(
        _EMBEDDING,
        name="synthetic tiny BitNet-embedding",
        n_layers=2,
        hidden=256,
        ffn=384,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        vocab=512,
        context=256,
    ),
    "tiny": replace(
        _BITNET,
        name="synthetic tiny",
        n_layers=2,
        hidden=256,
        ffn=640,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        vocab=1024,
        context=2048,
    ),
}
"""Shapes by name: PrismML's Ternary Bonsai and Bonsai 2, a mixture of experts like DeepGrove's Maple, Microsoft's
BitNet b1.58 2B-4T and BitNet-embedding, and tiny ones."""
