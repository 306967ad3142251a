"""Tensor names of Hugging Face folders <-> canonical names ("blk.0.attn_q")."""

from __future__ import annotations

import re

from bitnet_core.formats.names import INPUT_NORM

_GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "self_attn.inner_attn_ln": "attn_sub_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
    "mlp.ffn_layernorm": "ffn_sub_norm",
}
_LAYER |= {f"{theirs}.norm": f"{ours}{INPUT_NORM}" for theirs, ours in _LAYER.items() if theirs.endswith("_proj")}
_SUFFIXES = {"weight": "", "bias": ".bias", "weight_scale": ".scale", "scales": ".scales", "biases": ".biases"}
_IN_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d{0,3})\.(.+)")
_BUFFER = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def canonical(name: str) -> str | None:
    """Return the canonical name; None if the name is unknown, "" for buffers that hold nothing new.

    The names of weight_scale end in ".scale", of biases in ".bias", of MLX's parts in ".scales" and ".biases". Names of
    a model without a head (Qwen3Model) have no "model." in front.
    """
    if name.startswith(("layers.", "embed_tokens.", "norm.")):
        name = f"model.{name}"
    if _BUFFER.fullmatch(name):
        return ""
    stem, _, suffix = name.rpartition(".")
    if suffix not in _SUFFIXES:
        return None
    if stem in _GLOBAL:
        return _GLOBAL[stem] + _SUFFIXES[suffix]
    match = _IN_LAYER.fullmatch(stem)
    if match is None or match[2] not in _LAYER:
        return None
    return f"blk.{match[1]}.{_LAYER[match[2]]}{_SUFFIXES[suffix]}"


_STORED = {
    **{short: name for name, short in _GLOBAL.items()},
    **{short: name for name, short in reversed(_LAYER.items())},  # reversed, so that the first of two names wins
}


def stored(name: str) -> str:
    """Return the name in a folder of transformers or MLX: the inverse of `canonical`."""
    stem, suffix = name, "weight"
    for stated, end in _SUFFIXES.items():
        if end and name.endswith(end):
            stem, suffix = name.removesuffix(end), stated
    if stem in _STORED:
        return f"{_STORED[stem]}.{suffix}"
    _, layer, linear = stem.split(".")
    return f"model.layers.{layer}.{_STORED[linear]}.{suffix}"
