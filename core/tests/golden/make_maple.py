"""Makes maple/ without other programs: python make_maple.py

TQ.gguf is the tiny model of maple_model.py with the keys that llama.cpp's converter writes, TQ2_0 and TQ1_0 matrices
and f16 tables. reference.npz holds logits f32 of maple_model.py with activations that are not rounded: run "a" from the
start, run "b" the last rows of a text that is longer than the window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.tokenizer.tokenizer import byte_alphabet
from maple_model import Forward, Shape

OUT = Path(__file__).parent / "maple"
SHAPE = Shape()
BLOCK = 256
LENGTHS = {"a": (20, 0), "b": (120, 80)}
"""Tokens of a run, and the first row whose logits are kept."""


def tq1_0(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return 52 bytes for each block of codes u8[blocks, 256] of 0..2: base 3, five codes a byte, four in the last."""
    parts = [codes[:, :160].reshape(-1, 5, 32), codes[:, 160:240].reshape(-1, 5, 16), codes[:, 240:].reshape(-1, 4, 4)]
    packed = []
    for part in parts:
        powers = 3 ** np.arange(4, 4 - part.shape[1], -1)
        value = (part * powers[:, None]).sum(axis=1)
        packed.append((value * 256 + 242) // 243)
    return np.concatenate(packed, axis=1).astype(np.uint8)


def tq2_0(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return 64 bytes for each block: byte j of a half has columns j, 32 + j, 64 + j, 96 + j, lowest bits first."""
    parts = codes.reshape(-1, 2, 4, 32).astype(np.uint8)
    packed = parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6
    return packed.reshape(len(codes), 64)


PACK = {"TQ1_0": tq1_0, "TQ2_0": tq2_0}


def stored(name: str, kind: str) -> npt.NDArray[np.uint8]:
    """Return the bytes of a matrix: blocks of codes, each followed by its row's scale."""
    signs = SHAPE.signs(name)
    codes = (signs.reshape(-1, BLOCK) + 1).astype(np.uint8)
    scales = np.repeat(SHAPE.scales(name).reshape(-1), signs.shape[-1] // BLOCK)
    return np.concatenate([PACK[kind](codes), scales.astype("<f2").view(np.uint8).reshape(-1, 2)], axis=1).reshape(-1)


def tensors() -> dict[str, tuple[tuple[int, ...], str, npt.NDArray[Any]]]:
    """Return shape, type and data by name."""
    found: dict[str, tuple[tuple[int, ...], str, npt.NDArray[Any]]] = {}
    for name in ("token_embd", "output"):
        found[name] = (SHAPE.vocab, SHAPE.hidden), "F16", SHAPE.table(name)
    norms = ["output_norm"]
    for layer in range(SHAPE.layers):
        for name, shape in SHAPE.matrices(layer).items():
            kind = "TQ1_0" if "gate" in name or "down" in name else "TQ2_0"
            found[name] = shape, kind, stored(name, kind)
        router = f"blk.{layer}.ffn_gate_inp"
        found[router] = (SHAPE.experts, SHAPE.hidden), "F32", SHAPE.table(router).astype(np.float32)
        norms += [f"blk.{layer}.{name}" for name in ("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm")]
    for name in norms:
        values = SHAPE.norm(name)
        found[name] = values.shape, "F32", values
    return found


def keys() -> dict[str, Any]:
    """Return the metadata: that of llama.cpp's converter, and a byte-level vocabulary."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    specials = [f"<|special_{n}|>" for n in range(SHAPE.vocab - 257)]
    tokens = [*(letters[byte] for byte in range(256)), *specials, "th"]
    own: dict[str, Any] = {
        "block_count": SHAPE.layers,
        "context_length": SHAPE.context,
        "embedding_length": SHAPE.hidden,
        "attention.head_count": SHAPE.heads,
        "attention.head_count_kv": SHAPE.kv_heads,
        "attention.key_length": SHAPE.head_dim,
        "attention.value_length": SHAPE.head_dim,
        "attention.layer_norm_rms_epsilon": SHAPE.eps,
        "attention.sliding_window": SHAPE.window,
        "attention.sliding_window_pattern": np.array(SHAPE.windowed),
        "rope.freq_base": SHAPE.theta,
        "rope.dimension_count": SHAPE.rope_dim,
        "expert_count": SHAPE.experts,
        "expert_used_count": SHAPE.used,
        "expert_feed_forward_length": SHAPE.ffn,
        "swiglu_clamp_exp": np.full(SHAPE.layers, SHAPE.limit, np.float32),
        "vocab_size": SHAPE.vocab,
    }
    return {
        "general.architecture": "maple",
        "general.name": "tiny maple",
        **{f"maple.{name}": value for name, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * len(specials) + [1], np.int32),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.eos_token_id": 256,
    }


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with GGUFWriter(OUT / "TQ.gguf") as file:
        for key, value in keys().items():
            file.metadata(key, value)
        content = tensors()
        for name, (shape, kind, data) in content.items():
            file.tensor(f"{name}.weight", shape, kind, data.nbytes)
        for name, (_, _, data) in content.items():
            file.write(f"{name}.weight", [data])
    draw = np.random.default_rng(3)
    arrays: dict[str, Any] = {}
    for run, (length, first) in LENGTHS.items():
        tokens = draw.integers(0, SHAPE.vocab, length, np.int32)
        arrays[f"tokens_{run}"], arrays[f"first_{run}"] = tokens, first
        arrays[f"logits_{run}"] = Forward(SHAPE).logits(tokens)[first:].astype(np.float32)
    np.savez_compressed(OUT / "reference.npz", **arrays)


if __name__ == "__main__":
    main()
