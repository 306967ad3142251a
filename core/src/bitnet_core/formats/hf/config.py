"""Build a ModelConfig from config.json of a Hugging Face folder, with the quantization of its linear layers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.qwen35 import ARCHITECTURE
from bitnet_core.formats.hf.names import canonical
from bitnet_core.formats.keys import MAX_LAYERS, MetadataReader, short
from bitnet_core.formats.names import FIRST_INPUT_NORM, SUB_NORMS
from bitnet_core.model.config import Activation, ModelConfig
from bitnet_core.model.families import FAMILIES, UNSUPPORTED, HuggingFace, folder_families


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization of a folder's linear layers.

    direction: whether a stored weight_scale is the scale ("multiply") or its inverse ("divide"). grouped: floats are
    ternary already, in groups of columns; never master weights. mlx: bits of MLX's packed matrices by canonical name,
    with the default under ""; empty for other folders.
    """

    direction: Literal["multiply", "divide"]
    linear_class: str
    grouped: bool = False
    mlx: Mapping[str, int] = field(default_factory=dict)


def read_config(
    path: Path, values: Mapping[str, Any], tensors: Collection[str], name: str
) -> tuple[ModelConfig, Quantization]:
    """Return the configuration and quantization in a config.json, for a folder with these tensors (canonical names).

    Raises ModelError for a model that is not 1.58-bit, for unsupported variants, and for unsound values.
    """
    keys = MetadataReader(path, values)
    kind = keys.text("model_type", "")
    of_1bitllm = values.get("weight_bits") == 1
    families = folder_families()
    if kind in families and "hadamard" not in values:
        config = _grouped_config(path, keys, name, families[kind])
        if FIRST_INPUT_NORM in tensors:  # BitNet-embedding, whose folder has master weights and no head
            own = replace(config, projection_norms=True, activation_group_size=0, tied_head="output" not in tensors)
            return own, _quantization(path, keys)
        return config, _grouped(path, keys, config.arch)
    _check_known(path, values, kind)
    quantization = _quantization(path, keys)
    if kind == "llama" and not of_1bitllm and not keys.has("quantization_config"):
        quantization = replace(quantization, grouped=True)  # TriLM's unpacked folders: ternary floats, or not 1.58-bit
    bitnet = kind == "bitnet" and not of_1bitllm
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    if not keys.has("head_dim") and hidden % heads:
        raise ModelError(f"{path}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = keys.count("head_dim", max(hidden // heads, 1))
    kv_heads = keys.count("num_key_value_heads", heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{path}: {heads} heads of {head_dim} with {kv_heads} key-value heads are not a valid combination"
        )
    layers = keys.count("num_hidden_layers", limit=MAX_LAYERS)
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
    )
    return _with_rope_scaling(path, keys, config), quantization


def _grouped(path: Path, keys: MetadataReader, arch: str) -> Quantization:
    """Return the quantization of a family stored as unpacked ternary floats or as MLX's packs."""
    mlx = _mlx(path, keys) if keys.has("quantization") else {}
    if not mlx and keys.has("quantization_config"):
        method = MetadataReader(path, keys.group("quantization_config")).text("quant_method", "without a name")
        raise ModelError(
            f"{path}: quant_method {short(method)} is not supported in a {arch} model; use its ternary files"
        )
    return Quantization("multiply", "", grouped=not mlx, mlx=mlx)


def _grouped_config(path: Path, keys: MetadataReader, name: str, arch: str) -> ModelConfig:
    """Return the configuration of a family with a folder of its own kind."""
    family = FAMILIES[arch]
    folder: HuggingFace = cast(HuggingFace, family.folder)
    for flag, why in (("attention_bias", "biases"), ("use_sliding_window", "sliding-window attention")):
        if keys.flag(flag, False):
            raise ModelError(f"{path}: {flag} is true, and {why} is not supported")
    heads = keys.count("num_attention_heads")
    config = ModelConfig(
        arch=arch,
        name=name,
        n_layers=keys.count("num_hidden_layers", limit=MAX_LAYERS),
        hidden=keys.count("hidden_size"),
        ffn=keys.count("intermediate_size"),
        n_heads=heads,
        n_kv_heads=keys.count("num_key_value_heads", heads),
        head_dim=keys.count("head_dim", folder.head_dim),
        vocab=keys.count("vocab_size"),
        context=keys.count("max_position_embeddings", folder.context),
        norm_eps=keys.real("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(path, keys, 10000.0),
        activation=_activation(path, keys, family.activation or "silu"),
        sub_norms=False,
        tied_head=keys.flag("tie_word_embeddings", False),
        qk_norm=family.qk_norm,
        activation_group_size=family.activation_group_size,
    )
    if heads % config.n_kv_heads or config.head_dim % 2:
        raise ModelError(
            f"{path}: {heads} heads of {config.head_dim} with {config.n_kv_heads} key-value heads are not a valid "
            "combination"
        )
    return _with_rope_scaling(path, keys, config)


def _mlx(path: Path, keys: MetadataReader) -> dict[str, int]:
    """Return the bits of MLX's packed matrices: the default, and those of modules with a different width (0:
    floats)."""
    values = keys.group("quantization")
    group = MetadataReader(path, values)
    if (mode := group.text("mode", "affine")) != "affine":
        raise ModelError(f"{path}: MLX's quantization mode {short(mode)} is not supported, only affine 2-bit packs")
    bits = {"": group.count("bits")}
    for module, value in values.items():
        if isinstance(value, dict):
            bits[canonical(f"{module}.weight") or module] = MetadataReader(path, value).count("bits")
        elif value is False:
            bits[canonical(f"{module}.weight") or module] = 0
    return bits


def _check_known(path: Path, values: Mapping[str, Any], kind: str) -> None:
    if "hadamard" in values or "hadamard" in kind:
        raise ModelError(
            f"{path}: the weights are rotated (hadamard), as in Bonsai 2: use the model's GGUF file (PQ2_0 or PTQ1_0), "
            "the only supported form"
        )
    family = kind.removesuffix("_text").replace("qwen3_5", "qwen35").replace("_moe", "moe")
    family = family.replace("hunyuan_v1_", "hunyuan-")
    if family == ARCHITECTURE:
        raise ModelError(
            f"{path}: model_type {kind} has gated delta nets: use the model's GGUF file (Q2_0, PQ2_0, PTQ1_0 or Q1_0), "
            "the only supported form"
        )
    if family in FAMILIES and kind not in ("bitnet", "llama"):
        raise ModelError(f"{path}: model_type {kind} is supported as a GGUF file alone: use the model's GGUF file")
    if family in UNSUPPORTED:
        raise ModelError(f"{path}: model_type {kind} is not supported: {UNSUPPORTED[family]}")
    if kind not in ("bitnet", "llama"):
        known = ", ".join(("bitnet", "llama", *folder_families()))
        raise ModelError(f"{path}: model_type {short(kind)} is not supported; bitnet reads {known}")


def _quantization(path: Path, keys: MetadataReader) -> Quantization:
    group = MetadataReader(path, keys.group("quantization_config"))
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


def _activation(path: Path, keys: MetadataReader, default: Activation) -> Activation:
    name = keys.text("hidden_act", default)
    if name == "relu2":
        return "relu2"
    if name == "silu":
        return "silu"
    raise ModelError(f"{path}: hidden_act {short(name)} is not supported, only relu2 and silu")


def _rope_group(path: Path, keys: MetadataReader) -> MetadataReader:
    """Return the values of `rope_scaling` if the file has it, as transformers does, or of `rope_parameters`."""
    return MetadataReader(path, keys.group("rope_scaling") or keys.group("rope_parameters"))


def _rope_theta(path: Path, keys: MetadataReader, default: float) -> float:
    return _rope_group(path, keys).real("rope_theta", keys.real("rope_theta", default))


def _with_rope_scaling(path: Path, keys: MetadataReader, config: ModelConfig) -> ModelConfig:
    """Add the file's RoPE scaling to the configuration."""
    group = _rope_group(path, keys)
    if keys.real("partial_rotary_factor", 1.0) != 1 or group.real("partial_rotary_factor", 1.0) != 1:
        raise ModelError(f"{path}: a partial_rotary_factor is not supported")
    name = group.text("rope_type", group.text("type", "default"))
    if name == "default":
        return config
    factor = group.real("factor", 1.0)
    if name == "linear":
        return replace(config, rope_scaling="linear", rope_factor=factor)
    original = keys.count("max_position_embeddings", 2048)
    original = group.count("original_max_position_embeddings", original)
    if name == "yarn":
        return _yarn(path, group, replace(config, rope_factor=factor, rope_original_context=original))
    if name == "llama3":
        return replace(
            config,
            rope_scaling="llama3",
            rope_factor=factor,
            rope_original_context=original,
            rope_low_freq_factor=group.real("low_freq_factor", 1.0),
            rope_high_freq_factor=group.real("high_freq_factor", 4.0),
        )
    raise ModelError(f"{path}: the RoPE type {short(name)} is not supported, only default, linear, yarn and llama3")


def _yarn(path: Path, group: MetadataReader, config: ModelConfig) -> ModelConfig:
    """Add YaRN with its betas. Raises ModelError if another YaRN value differs from the formula's."""
    usual = 0.1 * math.log(config.rope_factor) + 1 if config.rope_factor > 1 else 1.0
    if abs(group.real("attention_factor", usual) - usual) > 1e-6:
        raise ModelError(f"{path}: YaRN with an attention_factor other than 0.1 ln(factor) + 1 is not supported")
    for name in ("mscale", "mscale_all_dim"):
        if group.has(name):
            raise ModelError(f"{path}: YaRN with {name} is not supported")
    if not group.flag("truncate", True):
        raise ModelError(f"{path}: YaRN with truncate = false is not supported")
    return replace(
        config,
        rope_scaling="yarn",
        rope_beta_fast=group.real("beta_fast", 32.0),
        rope_beta_slow=group.real("beta_slow", 1.0),
    )
