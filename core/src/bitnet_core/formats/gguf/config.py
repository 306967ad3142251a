"""Build a ModelConfig from GGUF metadata, adding the rules that the keys do not state (activation, RoPE, tied head,
sub-norms)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf import maple, prediction_heads, qwen35
from bitnet_core.formats.gguf.hadamard import check_unrotated
from bitnet_core.formats.gguf.multipliers import read_multipliers
from bitnet_core.formats.gguf.unused_keys import check_unused
from bitnet_core.formats.keys import MetadataReader, short
from bitnet_core.formats.names import FIRST_INPUT_NORM, SUB_NORMS
from bitnet_core.formats.pooling import pooling_of_gguf
from bitnet_core.model.config import Activation, ModelConfig
from bitnet_core.model.families import FAMILIES, UNSUPPORTED
from bitnet_core.model.rope import LONG_FACTORS
from bitnet_core.model.source import Finding
from bitnet_core.string_table import StringTable

_SCALING_KEYS = {"type", "factor", "original_context_length", "finetuned", "attn_factor"} | {
    f"yarn_{name}" for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow")
}
_LONGEST_NAME = 300  # characters
_UNUSED = 5  # tokenizer.ggml.token_type of an unused row
_SHAPES_OF_1BITLLM = {(24, 1536), (26, 3200)}  # (layers, hidden) of the large and the 3B model, which use SiLU


def read_config(path: Path, metadata: Mapping[str, Any], tensors: Collection[str]) -> tuple[ModelConfig, list[Finding]]:
    """Return the configuration and findings of a GGUF file with these key-values and tensor names (without ".weight").

    Raises ModelError for an unknown architecture and for missing, mistyped or contradictory keys.
    """
    arch = _architecture(path, metadata)
    keys = MetadataReader(path, metadata, f"{arch}.")
    config, findings = _transformer(path, metadata, keys, arch, tensors)
    pooling, assumed = pooling_of_gguf(path, keys, config.projection_norms)
    config = replace(config, pooling=pooling)
    if arch == qwen35.ARCHITECTURE:
        return qwen35.with_delta_nets(path, keys, metadata, config), findings
    if arch == maple.ARCHITECTURE:
        return maple.with_experts(path, keys, config), findings
    findings += [*assumed, *check_unused(path, keys, arch)]
    check_unrotated(path, metadata)
    return read_multipliers(path, keys, arch).config(config), findings


def _transformer(
    path: Path, metadata: Mapping[str, Any], keys: MetadataReader, arch: str, tensors: Collection[str]
) -> tuple[ModelConfig, list[Finding]]:
    """Read the keys that every architecture has: sizes, norms, RoPE, vocabulary."""
    family = FAMILIES[arch]
    hidden, heads, kv_heads, head_dim = _heads(path, keys, arch)
    layers = prediction_heads.trunk_layers(path, keys, tensors)
    vocab = keys.count("vocab_size", _tokens(metadata))
    activation, findings = _activation(path, keys, arch, layers, hidden, vocab)
    projection_norms = family.projection_norms and FIRST_INPUT_NORM in tensors
    config = ModelConfig(
        arch=arch,
        name=_name(metadata.get("general.name")) or path.stem,
        n_layers=layers,
        hidden=hidden,
        ffn=keys.count("expert_feed_forward_length" if arch == maple.ARCHITECTURE else "feed_forward_length"),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        context=keys.count("context_length"),
        norm_eps=keys.real("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.real("rope.freq_base", 10000.0),
        activation=activation,
        sub_norms=any(f"blk.{i}.{name}" in tensors for i in range(layers) for name in SUB_NORMS),
        tied_head="output" not in tensors or family.tied_head,
        rope_interleaved=family.rope_interleaved,
        qk_norm=family.qk_norm,
        qk_norm_after_rope=family.qk_norm_after_rope,
        projection_norms=projection_norms,
        activation_group_size=0 if projection_norms else family.activation_group_size,
        vocab_tokens=_last_token(metadata, vocab),
    )
    return _with_rope_scaling(path, keys, config, tensors), findings


def _architecture(path: Path, metadata: Mapping[str, Any]) -> str:
    arch = metadata.get("general.architecture")
    if isinstance(arch, str) and arch in UNSUPPORTED:
        raise ModelError(f"{path}: architecture {arch} is not supported: {UNSUPPORTED[arch]}")
    if not isinstance(arch, str) or arch not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ModelError(f"{path}: architecture {short(arch)} is not supported; bitnet runs {known}")
    return arch


def _heads(path: Path, keys: MetadataReader, arch: str) -> tuple[int, int, int, int]:
    """Return the hidden size, the query heads, the key/value heads and the head size."""
    heads = keys.count("attention.head_count")
    hidden = keys.count("embedding_length")
    if not keys.has("attention.key_length") and hidden % heads:
        raise ModelError(f"{path}: embedding_length {hidden} is not a multiple of head_count {heads}")
    head_dim = keys.count("attention.key_length", max(hidden // heads, 1))
    kv_heads = keys.count("attention.head_count_kv", heads)
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{path}: key_length and value_length differ, which is not supported")
    rotated = keys.count("rope.dimension_count", head_dim)
    if rotated != head_dim and not FAMILIES[arch].partial_rope:
        raise ModelError(f"{path}: rope.dimension_count {rotated} is not the head size {head_dim}: not supported")
    if heads % kv_heads:
        raise ModelError(f"{path}: head_count {heads} is not a multiple of head_count_kv {kv_heads}")
    if head_dim % 2:
        raise ModelError(f"{path}: the head size {head_dim} is odd, so RoPE has no pairs")
    return hidden, heads, kv_heads, head_dim


def _name(stated: Any) -> str:
    return stated[:_LONGEST_NAME] if isinstance(stated, str) else ""


def _tokens(metadata: Mapping[str, Any]) -> int | None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, StringTable) and tokens else None


def _last_token(metadata: Mapping[str, Any], vocab: int) -> int:
    """Return the number of tokens up to the last real one.

    The rows after it are fillers: tokens of type unused, or named [PAD...].
    """
    tokens, kinds = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, StringTable):
        return vocab
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        kinds = np.zeros(len(tokens), np.int32)
    count = min(len(tokens), vocab)
    while count and (tokens[count - 1] == f"[PAD{count - 1}]" or kinds[count - 1] == _UNUSED):
        count -= 1
    return count


def _activation(
    path: Path, keys: MetadataReader, arch: str, layers: int, hidden: int, vocab: int
) -> tuple[Activation, list[Finding]]:
    """Choose squared ReLU or SiLU: GGUF has no key for it, except in files of recent llama.cpp converters."""
    if keys.has("hidden_activation"):
        name = keys.text("hidden_activation", "")
        if name == "relu2":
            return "relu2", []
        if name == "silu":
            return "silu", []
        raise ModelError(f"{path}: the activation {name[:40]!r} is not supported, only relu2 and silu")
    if stated := FAMILIES[arch].activation:
        return stated, []
    if (layers, hidden) in _SHAPES_OF_1BITLLM:
        return "silu", []
    if layers == 30 and vocab == 128256:
        text = "no key names the activation; the shape is that of BitNet 2B-4T, which uses squared ReLU"
        return "relu2", [Finding("info", "activation-inferred", text)]
    text = "no key names the activation of this 'bitnet' model; SiLU is assumed, and squared ReLU would give other text"
    return "silu", [Finding("warning", "activation-ambiguous", text)]


def _with_rope_scaling(path: Path, keys: MetadataReader, config: ModelConfig, tensors: Collection[str]) -> ModelConfig:
    """Add the kind of RoPE scaling with its numbers."""
    name = keys.text("rope.scaling.type", "none")
    if unknown := sorted(keys.names_below("rope.scaling.") - _SCALING_KEYS):
        key = f"rope.scaling.{unknown[0]}"
        raise ModelError(f"{path}: the key {short(key)} is unknown, and RoPE may be wrong without it")
    if name == "none":
        return config
    if name == "longrope" and FAMILIES[config.arch].longrope:
        if not set(tensors) >= LONG_FACTORS:
            raise ModelError(
                f"{path}: the RoPE scaling longrope needs the tensors {' and '.join(sorted(LONG_FACTORS))}"
            )
        _plain_magnitude(path, keys)
        original = keys.count("rope.scaling.original_context_length", config.context)
        return replace(config, rope_scaling="longrope", rope_original_context=original)
    if name not in ("linear", "yarn"):
        raise ModelError(f"{path}: the RoPE scaling {name[:40]!r} is not supported, only linear and yarn")
    factor = keys.real("rope.scaling.factor", 1.0)
    if name == "linear":
        return replace(config, rope_scaling="linear", rope_factor=factor)
    return _with_yarn(path, keys, replace(config, rope_scaling="yarn", rope_factor=factor))


def _plain_magnitude(path: Path, keys: MetadataReader) -> None:
    for name in ("yarn_ext_factor", "yarn_attn_factor", "attn_factor"):
        if (value := keys.real(f"rope.scaling.{name}", 1.0)) != 1:
            raise ModelError(f"{path}: rope.scaling.{name} is {value:g}; only 1 is supported")


def _with_yarn(path: Path, keys: MetadataReader, config: ModelConfig) -> ModelConfig:
    """Add YaRN's original context, beta_fast and beta_slow. Raises ModelError if another YaRN key differs from the
    value in the formula."""
    original = keys.count("rope.scaling.original_context_length")
    _plain_magnitude(path, keys)
    fast = keys.real("rope.scaling.yarn_beta_fast", 32.0)
    slow = keys.real("rope.scaling.yarn_beta_slow", 1.0)
    return replace(config, rope_original_context=original, rope_beta_fast=fast, rope_beta_slow=slow)
