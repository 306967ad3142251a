"""config.json of a Hugging Face folder -> ModelConfig, and how its linear layers are quantized."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MAX_LAYERS, Keys, short
from bitnet_core.formats.names import SUB_NORMS
from bitnet_core.model.config import Activation, ModelConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class Quantization:
    """direction: whether a stored weight_scale is the scale ("multiply") or its inverse ("divide")."""

    direction: Literal["multiply", "divide"]
    linear_class: str


def read_config(
    path: Path, values: Mapping[str, Any], tensors: Collection[str], name: str
) -> tuple[ModelConfig, Quantization]:
    """The model of a config.json with these values, in a folder with these tensors (canonical names).

    Raises ModelError for a model that is not 1.58-bit, for unsupported variants, and for unsound values.
    """
    keys = Keys(path, values)
    kind = keys.text("model_type", "")
    of_1bitllm = values.get("weight_bits") == 1
    quantization = _quantization(path, keys)
    if kind not in ("bitnet", "llama"):
        raise ModelError(f"{path}: model_type {short(kind)} is not supported, only bitnet and llama")
    if kind == "llama" and not of_1bitllm and not keys.has("quantization_config"):
        raise ModelError(f"{path}: a llama model without a bitnet quantization_config: it is not a 1.58-bit model")
    bitnet = kind == "bitnet" and not of_1bitllm
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    if not keys.has("head_dim") and hidden % heads:
        raise ModelError(f"{path}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = keys.count("head_dim", max(hidden // heads, 1))
    kv_heads = keys.count("num_key_value_heads", heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(f"{path}: {heads} heads of {head_dim} with {kv_heads} key-value heads do not work together")
    layers = keys.count("num_hidden_layers", limit=MAX_LAYERS)
    scaling, factor, original, low, high = _rope_scaling(path, keys)
    config = ModelConfig(
        arch="bitnet-b1.58" if bitnet else "bitnet" if of_1bitllm else "llama",
        name=name,
        n_layers=layers,
        hidden=hidden,
        ffn=keys.count("intermediate_size"),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=keys.count("vocab_size"),
        context=keys.count("max_position_embeddings", 2048),
        norm_eps=keys.real("rms_norm_eps", 1e-5 if bitnet else 1e-6),
        rope_theta=_rope_theta(path, keys, 500000.0 if bitnet else 10000.0),
        activation=_activation(path, keys, "relu2" if bitnet else "silu"),
        sub_norms=any(f"blk.{i}.{sub}" in tensors for i in range(layers) for sub in SUB_NORMS),
        tied_head=keys.flag("tie_word_embeddings", "output" not in tensors) or (of_1bitllm and "output" not in tensors),
        rope_scaling=scaling,
        rope_factor=factor,
        rope_original_context=original,
        rope_low_freq_factor=low,
        rope_high_freq_factor=high,
    )
    return config, quantization


def _quantization(path: Path, keys: Keys) -> Quantization:
    group = Keys(path, keys.group("quantization_config"))
    method = group.text("quant_method", "bitnet")
    if method != "bitnet":
        raise ModelError(f"{path}: quant_method {short(method)} is not supported, only bitnet")
    if group.flag("use_rms_norm", False):
        raise ModelError(f"{path}: use_rms_norm, a norm inside every linear layer, is not supported")
    skipped = group.names("modules_to_not_convert")
    if unknown := [name for name in skipped if name not in ("lm_head", "model.embed_tokens", "embed_tokens")]:
        raise ModelError(f"{path}: modules_to_not_convert keeps {short(unknown[0])} in floats, which is not supported")
    linear_class = group.text("linear_class", "bitlinear")
    if linear_class not in ("bitlinear", "autobitlinear"):
        raise ModelError(f"{path}: linear_class {short(linear_class)} is not supported")
    return Quantization("multiply" if linear_class == "autobitlinear" else "divide", linear_class)


def _activation(path: Path, keys: Keys, default: Activation) -> Activation:
    name = keys.text("hidden_act", default)
    if name == "relu2":
        return "relu2"
    if name == "silu":
        return "silu"
    raise ModelError(f"{path}: hidden_act {short(name)} is not supported, only relu2 and silu")


def _rope_group(path: Path, keys: Keys) -> Keys:
    """The RoPE values: `rope_parameters` of recent files, `rope_scaling` of older ones."""
    return Keys(path, keys.group("rope_parameters") or keys.group("rope_scaling"))


def _rope_theta(path: Path, keys: Keys, default: float) -> float:
    return _rope_group(path, keys).real("rope_theta", keys.real("rope_theta", default))


def _rope_scaling(path: Path, keys: Keys) -> tuple[RopeScaling, float, int, float, float]:
    """Kind, factor, original context, and the low and high frequency factors (llama3)."""
    group = _rope_group(path, keys)
    if keys.real("partial_rotary_factor", 1.0) != 1 or group.real("partial_rotary_factor", 1.0) != 1:
        raise ModelError(f"{path}: a partial_rotary_factor is not supported")
    name = group.text("rope_type", group.text("type", "default"))
    if name == "default":
        return "none", 1.0, 0, 1.0, 4.0
    factor = group.real("factor", 1.0)
    if name == "linear":
        return "linear", factor, 0, 1.0, 4.0
    original = keys.count("max_position_embeddings", 2048)
    original = group.count("original_max_position_embeddings", original)
    if name == "yarn":
        return "yarn", factor, original, 1.0, 4.0
    if name == "llama3":
        return "llama3", factor, original, group.real("low_freq_factor", 1.0), group.real("high_freq_factor", 4.0)
    raise ModelError(f"{path}: the RoPE type {short(name)} is not supported, only default, linear, yarn and llama3")
