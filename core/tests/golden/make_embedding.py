"""Makes embedding/ with torch and transformers: python make_embedding.py

folder/ is a tiny model in the form of Microsoft's BitNet-embedding 0.6B: transformers' Qwen3Model whose linear layers
norm their input (a weight `norm` each), round it to int8 with a scale per token, and use ternary weights (absmean of
bf16 masters). I2_S.gguf is what Microsoft's script makes of it. reference.npz holds, for TEXTS, the vectors of the last
token divided by their lengths, "rounded" with int8 activations and "plain" with activations in float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.tokenizer.tokenizer import byte_alphabet
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

OUT = Path(__file__).parent / "embedding"
FOLDER = OUT / "folder"
TEXTS = ["the", "in the thin inn", "a", "Ünïcode 123 and more of the same, the longest text of all of them" * 2]
HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128, 256, 2, 4, 2, 64
EPS, THETA, CONTEXT = 1e-6, 1e6, 512
END, TURN = "<|endoftext|>", "<|im_end|>"
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"))
SHARES = {  # tensor names of GGUF's layers, by transformers'
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
ROUNDED = True


class BitLinear(torch.nn.Module):
    """A linear layer of BitNet-embedding: norm, int8 activations, ternary weights."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.norm = torch.nn.Module()
        self.norm.weight = torch.nn.Parameter(torch.ones(linear.in_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.norm.weight
        if ROUNDED:
            scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
            x = (x * scale).round().clamp(-128, 127) / scale
        mean = self.weight.abs().mean().clamp(min=1e-5)
        ternary = (self.weight / mean).round().clamp(-1, 1) * mean
        return torch.nn.functional.linear(x, ternary)


def model() -> Qwen3Model:
    torch.manual_seed(41)
    config = Qwen3Config(
        vocab_size=len(vocabulary()),
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="eager",
        dtype="bfloat16",
    )
    made = Qwen3Model(config).float().eval()
    for layer in made.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    setattr(part, name, BitLinear(linear))
    for name, values in made.named_parameters():
        one_dimensional = values.ndim == 1
        torch.nn.init.uniform_(values, 0.5, 1.5) if one_dimensional else torch.nn.init.normal_(values, std=0.3)
        values.data = values.data.bfloat16().float()
        assert one_dimensional or "norm" not in name, name
    return made


def vocabulary() -> dict[str, int]:
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    tokens = [letters[byte] for byte in range(256)] + ["".join(pair) for pair in MERGES] + [END, TURN]
    return {token: number for number, token in enumerate(tokens)}


def write_folder(made: Qwen3Model) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    words = {token: number for token, number in vocabulary().items() if token not in (END, TURN)}
    tokenizer = Tokenizer(models.BPE(words, list(MERGES)))
    tokenizer.normalizer = normalizers.NFC()
    rule = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(rule), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(TURN, special=True)])
    end = tokenizer.token_to_id(END)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, end)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TURN, pad_token=END).save_pretrained(FOLDER)
    made.config.save_pretrained(FOLDER)
    tensors = {name: values.data.bfloat16().contiguous() for name, values in made.named_parameters()}
    save_file(tensors, FOLDER / "model.safetensors", {"format": "pt"})
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds)
    ]
    (FOLDER / "modules.json").write_text(json.dumps(modules, indent=2))
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    (FOLDER / "1_Pooling").mkdir(exist_ok=True)
    (FOLDER / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2))


def i2_s(weight: np.ndarray) -> np.ndarray:
    mean = max(np.abs(weight).mean(), 1e-5)
    codes = (np.round(weight / mean).clip(-1, 1) + 1).astype(np.uint8).reshape(-1, 4, 32)
    packed = codes[:, 0] << 6 | codes[:, 1] << 4 | codes[:, 2] << 2 | codes[:, 3]
    tail = np.zeros(32, np.uint8)
    tail[:4] = np.array([mean], "<f4").view(np.uint8)
    return np.concatenate([packed.reshape(-1), tail])


def keys() -> dict[str, Any]:
    tokens = vocabulary()
    return {
        "general.architecture": "qwen3",
        "general.name": "tiny BitNet-embedding",
        "qwen3.block_count": LAYERS,
        "qwen3.context_length": CONTEXT,
        "qwen3.embedding_length": HIDDEN,
        "qwen3.feed_forward_length": FFN,
        "qwen3.attention.head_count": HEADS,
        "qwen3.attention.head_count_kv": KV_HEADS,
        "qwen3.vocab_size": len(tokens),
        "qwen3.rope.dimension_count": HEAD_DIM,
        "qwen3.attention.key_length": HEAD_DIM,
        "qwen3.attention.value_length": HEAD_DIM,
        "qwen3.rope.freq_base": THETA,
        "qwen3.attention.layer_norm_rms_epsilon": EPS,
        "general.file_type": 40,
        "qwen3.pooling_type": 3,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - 2) + [3, 3], np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.eos_token_id": tokens[END],
        "tokenizer.ggml.padding_token_id": tokens[END],
        "tokenizer.ggml.add_eos_token": True,
    }


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if not stem.startswith("layers."):
        return {"embed_tokens": "token_embd", "norm": "output_norm"}[stem] + ".weight"
    _, layer, part = stem.split(".", 2)
    ends = "_norm_in" if part.endswith("_proj.norm") else ""
    return f"blk.{layer}.{SHARES[part.removesuffix('.norm')]}{ends}.weight"


def write_gguf(made: Qwen3Model) -> None:
    stored: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = {}
    for name, values in made.named_parameters():
        array = values.data.numpy()
        if name.endswith("_proj.weight"):
            stored[gguf_name(name)] = ("I2_S", array.shape, i2_s(array))
        else:
            stored[gguf_name(name)] = ("F16", array.shape, array.astype(np.float16))
    with GGUFWriter(OUT / "I2_S.gguf") as writer:
        for key, value in keys().items():
            writer.metadata(key, value)
        for name, (kind, shape, data) in stored.items():
            writer.tensor(name, shape, kind, data.nbytes)
        for name, (_, _, data) in stored.items():
            writer.write(name, [data])


def vectors(made: Qwen3Model, tokens: list[list[int]]) -> np.ndarray:
    found = []
    for ids in tokens:
        with torch.no_grad():
            last = made(torch.tensor([ids])).last_hidden_state[0, -1]
        found.append(torch.nn.functional.normalize(last, dim=0).numpy())
    return np.stack(found)


def main() -> None:
    global ROUNDED
    made = model()
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_folder(made)
    write_gguf(made)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER)
    tokens = [tokenizer(text)["input_ids"] for text in TEXTS]
    found = {"texts": np.array(TEXTS), **{f"tokens_{n}": np.array(ids) for n, ids in enumerate(tokens)}}
    found["rounded"] = vectors(made, tokens)
    ROUNDED = False
    found["plain"] = vectors(made, tokens)
    np.savez_compressed(OUT / "reference.npz", **found)


if __name__ == "__main__":
    main()
