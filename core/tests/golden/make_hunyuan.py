"""Makes hunyuan/ with torch and transformers: python make_hunyuan.py

STQ1_0.gguf is a tiny model of HunYuanDenseV1 with random 3:4 sparse ternary matrices, with the keys, the pre-tokenizer
and the special tokens of Tencent's Hy-MT. reference.npz holds logits f32[T, vocab] that transformers computes in
float32 with the same weights: run "a" from the start, run "b" the last rows of a longer text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.tokenizer.tokenizer import byte_alphabet
from transformers import HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM

OUT = Path(__file__).parent / "hunyuan"
HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 256, 2, 4, 1, 64
ALPHA, THETA, EPS, CONTEXT = 1000.0, 10000.0, 1e-5, 512
BOOK = bytes.fromhex("a9892909a68626069a921a126a624a42012181a1042484a41018909840486068")
TEMPLATE = (
    "{% set loop_messages = messages %}{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set loop_messages = messages[1:] %}{{ messages[0]['content'] }}<\uff5chy_place▁holder▁no▁3\uff5c>{% endif %}"
    "{% for message in loop_messages %}{% if message['role'] == 'user' %}<\uff5chy_User\uff5c>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<\uff5chy_Assistant\uff5c>{{ message['content'] }}{{ eos_token }}"
    "{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<\uff5chy_Assistant\uff5c>{% endif %}"
)
SPECIALS = (
    "<\uff5chy_begin▁of▁sentence\uff5c>",
    "<\uff5chy_place▁holder▁no▁2\uff5c>",
    "<\uff5chy_place▁holder▁no▁3\uff5c>",
    "<\uff5chy_User\uff5c>",
    "<\uff5chy_Assistant\uff5c>",
)
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"))
LINEARS = {
    "attn_q": ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN),
    "attn_k": ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": ("mlp.gate_proj", FFN, HIDDEN),
    "ffn_up": ("mlp.up_proj", FFN, HIDDEN),
    "ffn_down": ("mlp.down_proj", HIDDEN, FFN),
}
NORMS = {
    "attn_norm": ("input_layernorm", HIDDEN),
    "ffn_norm": ("post_attention_layernorm", HIDDEN),
    "attn_q_norm": ("self_attn.query_layernorm", HEAD_DIM),
    "attn_k_norm": ("self_attn.key_layernorm", HEAD_DIM),
}
draw = np.random.default_rng(41)


def vocabulary() -> tuple[list[str], list[int]]:
    """Return tokens and their types: 256 bytes, merged ones, specials."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    tokens = [letters[byte] for byte in range(256)] + ["".join(pair) for pair in MERGES]
    return [*tokens, *SPECIALS], [1] * len(tokens) + [3] * len(SPECIALS)


def sparse(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values f32[rows, columns] and their bytes in STQ1_0: of weights 16 apart, one of four is zero."""
    patterns = draw.integers(0, 32, (rows, columns // 256, 4, 16))
    scales = draw.uniform(0.6, 1.4, (rows, columns // 256, 1)).astype(np.float32) * 1.6 / np.sqrt(columns)
    scales = scales.astype(np.float16)
    lanes = np.frombuffer(BOOK, np.uint8)[patterns][..., None, :] >> np.arange(0, 8, 2)[:, None] & 3
    values = (lanes.astype(np.float32) - 1).reshape(rows, columns // 256, 256) * scales
    slots, signs = patterns.reshape(rows, -1, 64) & 15, patterns.reshape(rows, -1, 64) >> 4
    packed = (slots[..., ::2] | slots[..., 1::2] << 4).astype(np.uint8)
    bits = np.packbits(signs.astype(np.uint8), axis=-1, bitorder="little")
    blocks = np.concatenate([packed, bits, scales.view(np.uint8)], axis=-1)
    return values.reshape(rows, columns).astype(np.float32), blocks.reshape(-1)


def weights() -> tuple[dict[str, np.ndarray], dict[str, tuple[str, tuple[int, ...], np.ndarray]]]:
    """Return the state of transformers, and the tensors of GGUF as (type, shape, bytes)."""
    state: dict[str, np.ndarray] = {}
    stored: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = {}

    def norm(name: str, ours: str, size: int) -> None:
        values = draw.uniform(0.5, 1.5, size).astype(np.float32)
        state[name], stored[ours] = values, ("F32", (size,), values)

    vocab = len(vocabulary()[0])
    table = (draw.standard_normal((vocab, HIDDEN)) * 0.3).astype(np.float16)
    state["model.embed_tokens.weight"] = table.astype(np.float32)
    stored["token_embd.weight"] = ("F16", table.shape, table)
    norm("model.norm.weight", "output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        for ours, (theirs, rows, columns) in LINEARS.items():
            values, data = sparse(rows, columns)
            state[f"model.layers.{layer}.{theirs}.weight"] = values
            stored[f"blk.{layer}.{ours}.weight"] = ("STQ1_0", (rows, columns), data)
        for ours, (theirs, size) in NORMS.items():
            norm(f"model.layers.{layer}.{theirs}.weight", f"blk.{layer}.{ours}.weight", size)
    return state, stored


def keys() -> dict[str, Any]:
    arch, (tokens, types) = "hunyuan-dense", vocabulary()
    ids = {token: number for number, token in enumerate(tokens)}
    return {
        "general.architecture": arch,
        "general.name": "tiny Hy-MT",
        f"{arch}.block_count": LAYERS,
        f"{arch}.context_length": CONTEXT,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": FFN,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.key_length": HEAD_DIM,
        f"{arch}.attention.value_length": HEAD_DIM,
        f"{arch}.attention.layer_norm_rms_epsilon": EPS,
        f"{arch}.rope.freq_base": THETA * ALPHA ** (HEAD_DIM / (HEAD_DIM - 2)),
        f"{arch}.rope.scaling.type": "none",
        f"{arch}.rope.scaling.factor": 1.0,
        f"{arch}.rope.scaling.original_context_length": CONTEXT,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "hunyuan-dense",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": ids[SPECIALS[0]],
        "tokenizer.ggml.eos_token_id": ids[SPECIALS[1]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def reference(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    config = HunYuanDenseV1Config(
        vocab_size=len(vocabulary()[0]),
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPS,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": THETA, "alpha": ALPHA, "factor": 1.0},
        attn_implementation="eager",
    )
    model = HunYuanDenseV1ForCausalLM(config).float().eval()
    tensors = {name: torch.from_numpy(values) for name, values in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert missing in ([], ["lm_head.weight"]), missing
    assert not unexpected, unexpected
    model.tie_weights()
    found: dict[str, np.ndarray] = {}
    for run, length, first in (("a", 24, 0), ("b", 300, 260)):
        tokens = draw.integers(0, config.vocab_size, length)
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens)[None]).logits[0].numpy()
        found |= {f"tokens_{run}": tokens.astype(np.int32), f"first_{run}": np.array(first)}
        found[f"logits_{run}"] = logits[first:].astype(np.float32)
    return found


def main() -> None:
    state, stored = weights()
    OUT.mkdir(exist_ok=True)
    with GGUFWriter(OUT / "STQ1_0.gguf") as writer:
        for key, value in keys().items():
            writer.metadata(key, value)
        for name, (kind, shape, data) in stored.items():
            writer.tensor(name, shape, kind, data.nbytes)
        for name, (_, _, data) in stored.items():
            writer.write(name, [data])
    np.savez_compressed(OUT / "reference.npz", **reference(state))


if __name__ == "__main__":
    main()
