"""GGUF metadata -> ModelConfig: the rules that the keys do not spell out (activation, RoPE, tied head, sub-norms)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MAX_LAYERS, Keys, short
from bitnet_core.formats.names import SUB_NORMS
from bitnet_core.formats.source import Finding
from bitnet_core.model.config import Activation, ModelConfig, RopeScaling

ARCHITECTURES = ("bitnet-b1.58", "bitnet-25", "bitnet", "llama")
_SHAPES_OF_1BITLLM = {(24, 1536), (26, 3200)}  # (layers, hidden) of the large and the 3B model: SiLU


def read_config(path: Path, metadata: Mapping[str, Any], tensors: Collection[str]) -> tuple[ModelConfig, list[Finding]]:
    """The model of a GGUF file with these key-values and tensor names (without ".weight").

    Raises ModelError for an unknown architecture and for missing, mistyped or contradictory keys.
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{path}: architecture {short(arch)} is not supported; bitnet runs {known}")
    if (parts := Keys(path, metadata, "split.").count("count", 1)) > 1:
        raise ModelError(f"{path}: is one of {parts} parts of a split model; merge them into one file first")
    keys = Keys(path, metadata, f"{arch}.")
    heads = keys.count("attention.head_count")
    hidden = keys.count("embedding_length")
    if not keys.has("attention.key_length") and hidden % heads:
        raise ModelError(f"{path}: embedding_length {hidden} is not a multiple of head_count {heads}")
    head_dim = keys.count("attention.key_length", max(hidden // heads, 1))
    kv_heads = keys.count("attention.head_count_kv", heads)
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{path}: key_length and value_length differ, which no supported model has")
    if (rotated := keys.count("rope.dimension_count", head_dim)) != head_dim:
        raise ModelError(f"{path}: rope.dimension_count {rotated} is not the head size {head_dim}: not supported")
    if heads % kv_heads:
        raise ModelError(f"{path}: head_count {heads} is not a multiple of head_count_kv {kv_heads}")
    if head_dim % 2:
        raise ModelError(f"{path}: the head size {head_dim} is odd, so RoPE has no pairs")
    layers = keys.count("block_count", limit=MAX_LAYERS)
    vocab = keys.count("vocab_size", _tokens(metadata))
    activation, findings = _activation(path, keys, arch, layers, hidden, vocab)
    scaling, factor, original = _rope_scaling(path, keys)
    config = ModelConfig(
        arch=arch,
        name=str(metadata.get("general.name") or path.stem),
        n_layers=layers,
        hidden=hidden,
        ffn=keys.count("feed_forward_length"),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        context=keys.count("context_length"),
        norm_eps=keys.real("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.real("rope.freq_base", 10000.0),
        activation=activation,
        sub_norms=any(f"blk.{i}.{name}" in tensors for i in range(layers) for name in SUB_NORMS),
        # the first 2B-4T release carries a copy of the embedding as output.weight, which its own program ignores
        tied_head="output" not in tensors or arch == "bitnet-25",
        rope_interleaved=arch == "llama",
        rope_scaling=scaling,
        rope_factor=factor,
        rope_original_context=original,
    )
    return config, findings


def _tokens(metadata: Mapping[str, Any]) -> int | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) and tokens else None


def _activation(
    path: Path, keys: Keys, arch: str, layers: int, hidden: int, vocab: int
) -> tuple[Activation, list[Finding]]:
    """Squared ReLU or SiLU: GGUF has no key for it except in files of recent llama.cpp converters."""
    if keys.has("hidden_activation"):
        name = keys.text("hidden_activation", "")
        if name == "relu2":
            return "relu2", []
        if name == "silu":
            return "silu", []
        raise ModelError(f"{path}: the activation {name[:40]!r} is not supported, only relu2 and silu")
    if arch in ("bitnet-b1.58", "bitnet-25"):
        return "relu2", []
    if arch == "llama" or (layers, hidden) in _SHAPES_OF_1BITLLM:
        return "silu", []
    if layers == 30 and vocab == 128256:
        text = "no key names the activation; the shape is that of BitNet 2B-4T, which uses squared ReLU"
        return "relu2", [Finding("info", "activation-inferred", text)]
    text = "no key names the activation of this 'bitnet' model; SiLU is assumed, and squared ReLU would give other text"
    return "silu", [Finding("warning", "activation-ambiguous", text)]


def _rope_scaling(path: Path, keys: Keys) -> tuple[RopeScaling, float, int]:
    """Kind of RoPE scaling, its factor, and the context length before it."""
    name = keys.text("rope.scaling.type", "none")
    if name == "none":
        return "none", 1.0, 0
    if name not in ("linear", "yarn"):
        raise ModelError(f"{path}: the RoPE scaling {name[:40]!r} is not supported, only linear and yarn")
    factor = keys.real("rope.scaling.factor", 1.0)
    if name == "linear":
        return "linear", factor, 0
    return "yarn", factor, keys.count("rope.scaling.original_context_length")
