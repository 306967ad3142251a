"""Damaged and hostile files of every format end in a ModelError with a message, or in a right answer."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import BY_NAME
from bitnet_core.formats.names import matrices, tables, vectors
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.codes import unpack
from bitnet_core.formats.ternary.tiles import Tile
from safetensors.numpy import save

HIDDEN, FFN, HEADS, KV, VOCAB = 256, 256, 4, 64, 32
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV, HIDDEN),
    "attn_v": (KV, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}
NORMS = ("attn_norm", "ffn_norm", "attn_sub_norm", "ffn_sub_norm")
TILES = {shape: Tile(64, 96) for shape in SHAPES.values()}
TILES_TL1 = {shape: Tile(64, 64, 32) for shape in SHAPES.values()}
LEGAL = np.array([b for b in range(256) if not b & (b >> 1) & 0x55], np.uint8)
NIBBLES = np.array([a << 4 | b for a in range(9) for b in range(9)], np.uint8)
EDGES = (0, 1, 2, 3, 31, 32, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 7, 10**9, 10**30, 1e308, -0.5, "", "x", "relu2", "yarn", [], [1, 2], {}, {"a": 1},
    float("nan"), float("inf"), "\ud7ff" * 50, [[]] * 3, {"quant_method": "bitnet"}, {"rope_type": "llama3"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def memory_limit() -> Iterator[None]:
    """Limit the process to 2 GB more than it uses."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def survives(path: Path, tiles: Any = None) -> bool:
    """Open and read everything; return whether it was rejected. Fails for unsound weights and for more than 5
    seconds."""
    start = time.process_time()
    try:
        source = open_model(path, tiles=tiles)
        config = source.config
        for name, (rows, columns) in matrices(config).items():
            weight = source.ternary(name)
            assert (weight.rows, weight.columns) == (rows, columns)
            assert unpack(weight.codes, columns).shape == (rows, columns)
            assert weight.codes.size == 0 or not (weight.codes & weight.codes >> 1 & 0x55).any()
            assert (np.isfinite(weight.scales) & (weight.scales > 0)).all()
        for name, (rows, _) in tables(config).items():
            assert source.dense(name).data.shape == (rows, source.dense(name).row_bytes)
        for name, n in vectors(config).items():
            assert np.isfinite(source.vector(name)).all()
            assert source.vector(name).shape == (n,)
        assert source.tokenizer
        assert source.format
        assert source.findings is not None
        assert source.metadata
        assert source.tensors
        source.close()
        message = ""
    except ModelError as error:
        message = str(error)
    assert time.process_time() - start < 5
    assert not message or 20 < len(message) < 2000
    return bool(message)


def overwrite(path: Path, content: bytes) -> None:
    """Overwrite an existing file; cheaper than a new file, which matters for thousands of them."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def matrix_bytes(rng: np.random.Generator, dtype: str, shape: tuple[int, int]) -> np.ndarray:
    """Return legal bytes of a random matrix."""
    kind = BY_NAME[dtype]
    size = kind.nbytes(shape) or 0
    if dtype == "F16":
        return rng.choice(np.array([-0.05, 0, 0.05], "<f2"), shape).view(np.uint8).reshape(-1)
    data = rng.choice(NIBBLES if dtype.startswith("TL") else LEGAL, size)
    half, single = (np.array([0.05], dtype).view(np.uint8) for dtype in ("<f2", "<f4"))
    if dtype in ("I2_S", "TL1", "TL2"):
        data[-32:-28] = single
    elif dtype == "IQ2_BN_R4":
        data.reshape(shape[0] // 4, -1)[:, :16] = np.tile(single, 4)
    elif kind.row_header:
        data.reshape(shape[0], -1)[:, : kind.row_header] = half if kind.row_header == 2 else single
    else:
        at = 0 if dtype.startswith("Q2") else kind.block_bytes - 2
        data.reshape(-1, kind.block_bytes)[:, at : at + 2] = half
    return data


EMBEDDINGS = {
    "TQ1_0": "Q8_0",
    "TQ2_0": "Q6_K",
    "Q2_0": "Q4_0",
    "IQ2_BN": "BF16",
    "IQ1_BN": "F32",
    "TL1": "Q4_K",
    "TL2": "IQ4_NL",
}
TYPES = ("I2_S", "TQ1_0", "TQ2_0", "Q2_0", "Q2_0_128", "IQ1_BN", "IQ2_BN", "IQ2_BN_R4", "TL1", "TL2", "F16")


def gguf_bytes(make_tiny: Callable[..., Any], path: Path, dtype: str) -> bytes:
    """Return a sound one-layer GGUF file with matrices of this type."""
    rng = np.random.default_rng(0)
    model = make_tiny(layers=1)
    arch = "bitnet-b1.58"
    model.keys |= {f"{arch}.embedding_length": HIDDEN, f"{arch}.feed_forward_length": FFN}
    model.keys |= {f"{arch}.attention.head_count": HEADS, f"{arch}.vocab_size": VOCAB}
    model.keys["tokenizer.ggml.tokens"] = model.keys["tokenizer.ggml.tokens"][:VOCAB]
    model.tensors = {}
    for name, shape in SHAPES.items():
        model.add(f"blk.0.{name}.weight", matrix_bytes(rng, dtype, shape), dtype, shape)
    for name in NORMS:
        model.add(f"blk.0.{name}.weight", np.ones(HIDDEN, "<f4"), "F32")
    model.add("output_norm.weight", np.ones(HIDDEN, "<f4"), "F32")
    embedding = EMBEDDINGS.get(dtype, "F16")
    size = BY_NAME[embedding].nbytes((VOCAB, HIDDEN)) or 0
    model.add("token_embd.weight", np.full(size, 0x22, np.uint8), embedding, (VOCAB, HIDDEN))
    content: bytes = model.write(path).read_bytes()
    return content


def mutated(rng: random.Random, content: bytes, header: int) -> bytes:
    """Damage the content in one of several ways, mostly in its first `header` bytes."""
    data = bytearray(content)
    kind = rng.randrange(8)
    stop = header if rng.random() < 0.8 else len(data)
    at = rng.randrange(stop)
    if kind == 0:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(stop)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at : at + 8] = rng.choice(EDGES).to_bytes(8, "little")
    elif kind == 2:
        data[at : at + 4] = (rng.choice(EDGES) & 0xFFFFFFFF).to_bytes(4, "little")
    elif kind == 3:
        del data[at : at + rng.randrange(1, 64)]
    elif kind == 4:
        data[at:at] = rng.randbytes(rng.randrange(1, 64))
    elif kind == 5:
        del data[rng.randrange(len(data)) :]
    elif kind == 6:
        data[at : at + 16] = rng.randbytes(16)
    else:  # a key or tensor that is there twice, is missing, or has another's place
        names = [b"attn_q", b"attn_k", b"attn_v", b"ffn_up", b"attn_norm", b"token_embd", b"block_count", b"alignment"]
        old = rng.choice(names)
        new = rng.choice([name for name in [*names, b"unknown_na"] if len(name) == len(old)] or [b"x" * len(old)])
        data = bytearray(bytes(data).replace(old, new, 1))
    return bytes(data)


@pytest.mark.parametrize("dtype", TYPES)
def test_mutated_gguf_files(tmp_path: Path, make_tiny: Callable[..., Any], dtype: str) -> None:
    """290 mutations of each of 11 encodings."""
    path = tmp_path / "a.gguf"
    content = gguf_bytes(make_tiny, path, dtype)
    tiles = TILES_TL1 if dtype == "TL1" else TILES
    assert not survives(path, tiles)
    header = content.index(b"token_embd.weight") + 60
    rng = random.Random(dtype)
    refused = 0
    for _ in range(290):
        overwrite(path, mutated(rng, content, header))
        refused += survives(path, tiles)
    assert 100 < refused < 290  # most faults matter, and some do not


def test_gguf_files_cut_off_anywhere(tmp_path: Path, make_tiny: Callable[..., Any]) -> None:
    path = tmp_path / "a.gguf"
    content = gguf_bytes(make_tiny, path, "I2_S")
    rng = random.Random(0)
    for _ in range(200):
        overwrite(path, content[: rng.randrange(len(content))])
        with pytest.raises(ModelError, match=r"a\.gguf"):
            open_model(path)


def folder_parts(packed: bool) -> tuple[dict[str, Any], bytes]:
    """Return config.json and model.safetensors of a sound folder."""
    config: dict[str, Any] = {
        "model_type": "bitnet", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 8, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "hidden_act": "relu2", "tie_word_embeddings": True, "head_dim": 32, "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": 1.0,
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "use_rms_norm": False},
    }  # fmt: skip
    rng = np.random.default_rng(0)
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": np.ones((8, 64), np.float16),
        "model.norm.weight": np.ones(64, np.float32),
        f"{layer}input_layernorm.weight": np.ones(64, np.float32),
        f"{layer}post_attention_layernorm.weight": np.ones(64, np.float16),
    }
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        full = f"{layer}{'self_attn' if name[0] in 'qkvo' else 'mlp'}.{name}"
        full = full.replace("mlp.o", "self_attn.o")
        if packed:
            tensors[f"{full}.weight"] = rng.choice(LEGAL, (16, 64))
            tensors[f"{full}.weight_scale"] = np.array([0.05], np.float32)
        else:
            tensors[f"{full}.weight"] = rng.standard_normal((64, 64)).astype(np.float32)
    return config, save(tensors)


def write_folder(path: Path, config: bytes, weights: bytes, index: bytes | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_bytes(config)
    (path / "model.safetensors").write_bytes(weights)
    if index is not None:
        (path / "model.safetensors.index.json").write_bytes(index)
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_mutated_safetensors_files(tmp_path: Path, packed: bool) -> None:
    config, weights = folder_parts(packed)
    text = json.dumps(config).encode()
    path = write_folder(tmp_path / "m", text, weights)
    assert not survives(path)
    header = 8 + int.from_bytes(weights[:8], "little")
    rng = random.Random(1)
    refused = 0
    for _ in range(500):
        overwrite(path / "model.safetensors", mutated(rng, weights, header))
        refused += survives(path)
    assert 300 < refused < 500
    for _ in range(100):
        overwrite(path / "model.safetensors", weights[: rng.randrange(len(weights))])
        assert survives(path)


def test_mutated_config_and_index_files(tmp_path: Path) -> None:
    config, weights = folder_parts(packed=True)
    index = json.dumps({"weight_map": {"a": "model.safetensors"}}).encode()
    path = write_folder(tmp_path / "m", json.dumps(config).encode(), weights, index)
    assert not survives(path)
    rng = random.Random(2)
    refused = 0
    for i in range(500):
        values = dict(config)
        if i % 2:
            values[rng.choice(list(values))] = rng.choice(JUNK)
            text = json.dumps(values).encode()
        else:
            text = mutated(rng, json.dumps(config).encode(), 400)
        overwrite(path / "config.json", text)
        refused += survives(path)
    assert 200 < refused < 500
    overwrite(path / "config.json", json.dumps(config).encode())
    for _ in range(300):
        overwrite(path / "model.safetensors.index.json", mutated(rng, index, len(index)))
        survives(path)
