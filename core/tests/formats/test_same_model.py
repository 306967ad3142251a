"""One model in every readable form: the ternary values and scales are equal, and so are the logits, to the last bit.

The encoders are written from the definitions of the formats, apart from the product's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.types import tl2_nbytes
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.tiles import Tile
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.reference.device import NumpyDevice
from safetensors.numpy import save_file

Values = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

HIDDEN, FFN, HEADS, KV, VOCAB = 256, 512, 4, 64, 64
SCALE = 0.0625  # exact in f16
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV, HIDDEN),
    "attn_v": (KV, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}
NORMS = {"attn_norm": HIDDEN, "ffn_norm": HIDDEN, "attn_sub_norm": HIDDEN, "ffn_sub_norm": FFN}
ARCH = "bitnet-b1.58"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 53, 58]


def raw(value: float, dtype: str) -> Bytes:
    return np.array([value], dtype).view(np.uint8)


def bit_pairs(codes: Bytes, low_first: bool) -> Bytes:
    """Pack codes u8[n, 4, m] into bytes u8[n, m]; entry 0 of the middle axis in the low or the high bit pair."""
    c = codes if low_first else codes[:, ::-1]
    return c[:, 0] | c[:, 1] << 2 | c[:, 2] << 4 | c[:, 3] << 6


def tail(codes: Bytes) -> Bytes:
    return np.concatenate([codes.reshape(-1), raw(SCALE, "<f4"), np.zeros(28, np.uint8)])


def i2_s(w: Values) -> Bytes:
    return tail(bit_pairs((w + 1).astype(np.uint8).reshape(-1, 4, 32), low_first=False))


def blocks(codes: Bytes, at_end: bool) -> Bytes:
    scale = np.tile(raw(SCALE, "<f2"), (len(codes), 1))
    return np.concatenate([codes, scale] if at_end else [scale, codes], axis=1).reshape(-1)


def tq2_0(w: Values) -> Bytes:
    codes = bit_pairs((w + 1).astype(np.uint8).reshape(-1, 4, 32), low_first=True)
    return blocks(codes.reshape(-1, 64), at_end=True)


def base3(digits: Bytes) -> Bytes:
    """Pack digits u8[..., 5], most significant first, into ceil(256 T / 243)."""
    number = digits.astype(int) @ np.array([81, 27, 9, 3, 1])
    return (-(-number * 256 // 243)).astype(np.uint8)


def tq1_0(w: Values) -> Bytes:
    c = (w + 1).astype(np.uint8).reshape(-1, 256)
    last = np.concatenate([c[:, 240:].reshape(-1, 4, 4), np.zeros((len(c), 1, 4), np.uint8)], axis=1)
    parts = c[:, :160].reshape(-1, 5, 32), c[:, 160:240].reshape(-1, 5, 16), last
    return blocks(np.concatenate([base3(part.swapaxes(1, 2)) for part in parts], axis=1), at_end=True)


def q2_0(w: Values, block: int) -> Bytes:
    codes = bit_pairs((w + 1).astype(np.uint8).reshape(-1, 4, 1), low_first=True)
    return blocks(codes.reshape(-1, block // 4), at_end=False)


def iq2_bn(w: Values) -> Bytes:
    codes = bit_pairs((w + 1).astype(np.uint8).reshape(-1, 4, 16), low_first=True).reshape(len(w), -1)
    return np.concatenate([np.tile(raw(SCALE, "<f4"), (len(w), 1)), codes], axis=1).reshape(-1)


def iq1_bn(w: Values) -> Bytes:
    c = (w + 1).astype(np.uint8).reshape(-1, 4, 16)
    packed = base3(c[:, :, :15].reshape(-1, 12, 5)[:, :, ::-1])
    last = np.concatenate([c[:, :, 15], np.zeros((len(c), 1), np.uint8)], axis=1)
    codes = np.concatenate([packed, base3(last[:, ::-1])[:, None]], axis=1).reshape(len(w), -1)
    return np.concatenate([np.tile(raw(SCALE, "<f2"), (len(w), 1)), codes], axis=1).reshape(-1)


def iq2_bn_r4(w: Values) -> Bytes:
    c = (w + 1).astype(np.uint8).reshape(len(w) // 4, 4, -1, 4, 4, 4)  # group, row k, block, l, s, i
    codes = (c << np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)).sum(axis=4, dtype=np.uint8)  # group, k, block, l, i
    codes = codes.transpose(0, 2, 3, 1, 4).reshape(len(w) // 4, -1)
    return np.concatenate([np.tile(raw(SCALE, "<f4"), (len(w) // 4, 4)), codes], axis=1).reshape(-1)


def pairs(w: Values) -> Bytes:
    return (3 * w[:, ::2] + w[:, 1::2] + 4).astype(np.uint8)


def tl1(w: Values) -> Bytes:
    """Encode with tiles of 64 x 64, 32 inner rows, and so 8 columns in the innermost loop but one."""
    m, k = w.shape
    nest = pairs(w).reshape(m // 64, 64 // 32, 32 // 16, 16, k // 64, 64 // 8, 8 // 4, 2)
    nest = nest.transpose(0, 4, 1, 5, 2, 6, 3, 7)
    return tail(nest[..., 0] << 4 | nest[..., 1])


def swapped(groups: Bytes) -> Bytes:
    """Reorder the quarters of each 32 rows to 0, 2, 1, 3."""
    return groups.reshape(-1, 4, 8)[:, [0, 2, 1, 3]].reshape(-1)


def tl2(w: Values) -> Bytes:
    """Encode with tiles of 64 x 96, and pairs for the remaining columns."""
    m, k = w.shape
    three = k // 96 * 96
    t = (w[:, :three].reshape(m, -1, 3) @ np.array([9, 3, 1])).reshape(m // 64, 2, 32, three // 96, 32)
    size = np.abs(t).astype(np.uint8).reshape(m // 64, 2, 32, three // 96, 16, 2)
    a = swapped((size[..., 0] << 4 | size[..., 1]).transpose(0, 3, 1, 4, 2))
    signs = (t < 0).reshape(m // 64, 2, 2, 16, three // 96, 4, 8).transpose(0, 4, 1, 5, 3, 6, 2)
    b = np.packbits(signs.reshape(-1, 16), axis=1)[:, ::-1].reshape(-1)
    v = pairs(w[:, three:]).reshape(m // 64, 2, 32, (k - three) // 32, 8, 2)
    c = swapped((v[..., 0] << 4 | v[..., 1]).transpose(0, 3, 1, 4, 2))
    codes = np.concatenate([a, b, c])
    return tail(np.pad(codes, (0, (tl2_nbytes(m, k) or 0) - 32 - codes.size)))


ENCODERS: dict[str, Callable[[Values], Bytes]] = {
    "I2_S": i2_s,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
    "Q2_0": lambda w: q2_0(w, 64),
    "Q2_0_128": lambda w: q2_0(w, 128),
    "IQ1_BN": iq1_bn,
    "IQ2_BN": iq2_bn,
    "IQ2_BN_R4": iq2_bn_r4,
    "TL1": tl1,
    "TL2": tl2,
    "F16": lambda w: (w * SCALE).astype("<f2").view(np.uint8).reshape(-1),
    "F32": lambda w: (w * SCALE).astype("<f4").view(np.uint8).reshape(-1),
    "BF16": lambda w: ((w * SCALE).astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8).reshape(-1),
}


@pytest.fixture(scope="module")
def matrices() -> dict[str, Values]:
    rng = np.random.default_rng(11)
    return {name: rng.choice([-1, 0, 1], shape, p=[0.35, 0.3, 0.35]).astype(np.int8) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def dense() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(12)
    vectors = {f"blk.0.{name}": rng.uniform(0.5, 1.5, n).astype(np.float32) for name, n in NORMS.items()}
    vectors["output_norm"] = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    return {**vectors, "token_embd": rng.standard_normal((VOCAB, HIDDEN)).astype(np.float16)}


def gguf(path: Path, make_tiny: Callable[..., Any], dtype: str, matrices: Any, dense: Any) -> ModelSource:
    model = make_tiny(layers=1)
    model.keys |= {f"{ARCH}.embedding_length": HIDDEN, f"{ARCH}.feed_forward_length": FFN}
    model.keys[f"{ARCH}.attention.head_count"] = HEADS
    model.tensors = {}
    for name, values in matrices.items():
        model.add(f"blk.0.{name}.weight", ENCODERS[dtype](values), dtype, values.shape)
    for name, array in dense.items():
        model.add(f"{name}.weight", array, "F16" if array.ndim == 2 else "F32")
    tile = Tile(64, 64, 32) if dtype == "TL1" else Tile(64, 96)
    return open_model(model.write(path), tiles=dict.fromkeys(SHAPES.values(), tile))


HF_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
    "output_norm": "model.norm",
    "token_embd": "model.embed_tokens",
}


def folder(path: Path, linear_class: str, matrices: Any, dense: Any) -> ModelSource:
    path.mkdir()
    config = {
        "model_type": "bitnet", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": 1, "vocab_size": VOCAB, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "relu2", "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "bitnet", "linear_class": linear_class},
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, array in dense.items():
        layer = name.startswith("blk.0.")
        full = HF_NAMES[name.removeprefix("blk.0.")]
        tensors[f"model.layers.0.{full}.weight" if layer else f"{full}.weight"] = array
    stored = SCALE if linear_class == "autobitlinear" else 1 / SCALE
    for name, values in matrices.items():
        packed = bit_pairs((values + 1).astype(np.uint8).reshape(1, 4, -1), low_first=True)  # four slabs of rows
        tensors[f"model.layers.0.{HF_NAMES[name]}.weight"] = packed.reshape(-1, values.shape[1])
        tensors[f"model.layers.0.{HF_NAMES[name]}.weight_scale"] = np.array([stored], np.float16)
    save_file(tensors, path / "model.safetensors")
    return open_model(path)


def logits(source: ModelSource) -> np.ndarray:
    engine = Engine(source, NumpyDevice(), EngineOptions(context=32, max_sequences=1))
    try:
        return engine.logits(TOKENS)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, matrices: Any, dense: Any) -> np.ndarray:
    """Return the logits of the packed Hugging Face form."""
    result = logits(folder(tmp_path_factory.mktemp("hf") / "m", "autobitlinear", matrices, dense))
    assert np.isfinite(result).all()
    assert result.std() > 0.1
    return result


@pytest.mark.parametrize("dtype", list(ENCODERS))
def test_gguf(tmp_path: Path, make_tiny: Any, dtype: str, matrices: Any, dense: Any, expected: np.ndarray) -> None:
    source = gguf(tmp_path / "a.gguf", make_tiny, dtype, matrices, dense)
    weight = source.ternary("blk.0.ffn_down")
    assert (weight.scale_kind, weight.scales.tolist()) == ("tensor", [SCALE])
    assert (logits(source) == expected).all()


def doubled(path: Path, make_tiny: Any, dtype: str, block: int, matrices: Any, dense: Any) -> ModelSource:
    """Double the second half of ffn_down's columns, by the scales of their blocks."""
    gguf(path, make_tiny, dtype, matrices, dense).close()
    file = GGUFFile(path)
    tensor = file.tensors["blk.0.ffn_down.weight"]
    data = file.data(tensor).copy().reshape(HIDDEN, FFN // block, -1)
    at = slice(0, 2) if dtype.startswith("Q2_0") else slice(-2, None)
    data[:, FFN // block // 2 :, at] = raw(2 * SCALE, "<f2")
    content = bytearray(path.read_bytes())
    content[tensor.offset : tensor.offset + data.size] = data.tobytes()
    path.write_bytes(content)
    return open_model(path)


def test_scales_that_differ_from_block_to_block(
    tmp_path: Path, make_tiny: Any, matrices: Any, dense: Any, expected: np.ndarray
) -> None:
    found = {}
    for dtype, block in (("TQ2_0", 256), ("TQ1_0", 256), ("Q2_0_128", 128), ("Q2_0", 64)):
        kept = max(block, 128)  # neighbouring blocks of 64 agree here
        source = doubled(tmp_path / f"{dtype}.gguf", make_tiny, dtype, block, matrices, dense)
        weight = source.ternary("blk.0.ffn_down")
        assert (weight.scale_kind, weight.block) == ("block", kept)
        assert (weight.scales == np.repeat([SCALE, 2 * SCALE], FFN // kept // 2)).all()
        engine = Engine(source, NumpyDevice(), EngineOptions(context=32, max_sequences=1))
        found[dtype] = engine.logits(TOKENS)
        assert engine.kernel_launches["matmul_ternary_block"] == 1
        engine.close()
    assert (found["TQ1_0"] == found["TQ2_0"]).all()
    for dtype in ("Q2_0", "Q2_0_128"):  # more partial sums
        np.testing.assert_allclose(found[dtype], found["TQ2_0"], rtol=0, atol=1e-4)
    assert np.abs(found["TQ2_0"] - expected).max() > 0.01


def test_hugging_face_with_inverse_scales(tmp_path: Path, matrices: Any, dense: Any, expected: np.ndarray) -> None:
    assert (logits(folder(tmp_path / "m", "bitlinear", matrices, dense)) == expected).all()
