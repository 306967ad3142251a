"""Tiny models with real tokenizers, as Hugging Face folders and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS, VOCAB = 256, 512, 4, 2, 2, 320
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|eot_id|>{% endfor %}"


def tokenizer_json() -> str:
    """Return a tokenizer of the 256 bytes, a few merges and three specials, with the llama-bpe pre-tokenizer."""
    vocabulary = {text: token for token, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("l", "l"), ("e", "ll"), ("1", "2"), ("!", "!"), ("Ċ", "Ċ")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=True))
    steps = [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return backend.to_str()


def write_folder(path: Path, *, llama: bool = False, scale: float = 0.02, **config: Any) -> Path:
    """Write a folder of f32 master weights: BitNet of 2B-4T style, or Llama with ternary layers."""
    draw = np.random.default_rng(3)
    values = {
        "model_type": "llama" if llama else "bitnet",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu" if llama else "relu2",
        "tie_word_embeddings": not llama,
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"},
    } | config
    hidden, ffn = values["hidden_size"], values["intermediate_size"]
    key_width = hidden // values["num_attention_heads"] * values["num_key_value_heads"]
    widths = {HIDDEN: hidden, FFN: ffn, HIDDEN // 2: key_width}
    tensors = {"model.embed_tokens.weight": draw.standard_normal((VOCAB, hidden)).astype(np.float16)}
    if llama:
        tensors["lm_head.weight"] = draw.standard_normal((VOCAB, hidden)).astype(np.float16)
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if not llama:
        norms |= {"self_attn.attn_sub_norm": hidden, "mlp.ffn_sub_norm": ffn}
    for layer in range(LAYERS):
        for name, width in norms.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = draw.uniform(0.5, 1.5, width).astype(np.float32)
        for name, shape in SHAPES.items():
            master = draw.standard_normal([widths[n] for n in shape]) * scale
            tensors[f"model.layers.{layer}.{name}.weight"] = master.astype(np.float32)
    tensors["model.norm.weight"] = draw.uniform(0.5, 1.5, hidden).astype(np.float32)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(values))
    (path / "tokenizer.json").write_text(tokenizer_json())
    tokenizer = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "add_bos_token": True, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """make_folder(name, llama=False, **config) -> path of a new folder."""
    return lambda name="masters", **options: write_folder(tmp_path / name, **options)
