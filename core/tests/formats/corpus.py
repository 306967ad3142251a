"""A corpus of tiny model files: each byte layout under each type id that a tool has used, and published sets of keys.

python core/tests/formats/corpus.py FOLDER    writes all of it; test_corpus.py opens each file.

The writer and the encoders are independent of the product's: a file here is what its own tool would write. Matrices
hold `CODES - 1` times `SCALE`, so that a reader's values can be compared.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, HEAD, VOCAB = 256, 64, 64
SCALE = 0.0625
_HALF = np.array([SCALE], "<f2").view(np.uint8)
_SINGLE = np.array([SCALE], "<f4").view(np.uint8)
LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
STQ1_0_BOOK = "a9892909a68626069a921a126a624a42012181a1042484a41018909840486068"


def codes(rows: int = HIDDEN, zeros: bool = True) -> np.ndarray:
    """Return codes u8[rows, HIDDEN] with values 0 to 2; without zeros (code 1) for binary layouts."""
    rng = np.random.default_rng(rows)
    return rng.choice([0, 1, 2] if zeros else [0, 2], (rows, HIDDEN)).astype(np.uint8)


def sparse_codes(rows: int = HIDDEN) -> np.ndarray:
    """Return codes with one zero in each group of four weights 16 apart, as in STQ1_0."""
    rng = np.random.default_rng(rows)
    groups = rng.choice([0, 2], (rows, HIDDEN // 64, 4, 16)).astype(np.uint8)
    np.put_along_axis(groups, rng.integers(0, 4, (rows, HIDDEN // 64, 1, 16)), 1, axis=2)
    return groups.reshape(rows, HIDDEN)


def i2_s(values: np.ndarray) -> np.ndarray:
    parts = values.reshape(-1, 4, 32)
    packed = parts[:, 0] << 6 | parts[:, 1] << 4 | parts[:, 2] << 2 | parts[:, 3]
    return np.concatenate([packed.reshape(-1), _SINGLE, np.zeros(28, np.uint8)])


def blocks(values: np.ndarray, size: int, pack: Callable[[np.ndarray], np.ndarray], scale_last: bool) -> np.ndarray:
    packed = pack(values.reshape(-1, size))
    scales = np.broadcast_to(_HALF, (len(packed), 2))
    return np.concatenate([packed, scales] if scale_last else [scales, packed], axis=1).reshape(-1)


def quarters(values: np.ndarray) -> np.ndarray:
    parts = values.reshape(len(values), -1, 4)
    return parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6


def tq2_0(values: np.ndarray) -> np.ndarray:
    parts = values.reshape(-1, 2, 4, 32)
    return (parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6).reshape(-1, 64)


def base3(*digits: np.ndarray) -> np.ndarray:
    total = sum(digit.astype(np.int64) * 3 ** (4 - n) for n, digit in enumerate(digits))
    return (-(-total * 256 // 243)).astype(np.uint8)


def tq1_0(values: np.ndarray) -> np.ndarray:
    first, second, last = values[:, :160], values[:, 160:240], values[:, 240:]
    return np.concatenate(
        [
            base3(*(first[:, 32 * n : 32 * n + 32] for n in range(5))),
            base3(*(second[:, 16 * n : 16 * n + 16] for n in range(5))),
            base3(*(last[:, 4 * n : 4 * n + 4] for n in range(4))),
        ],
        axis=1,
    )


def ptq1_0(values: np.ndarray) -> np.ndarray:
    first, second, last = values[:, :80], values[:, 80:120], values[:, 120:]
    return np.concatenate(
        [
            base3(*(first[:, 16 * n : 16 * n + 16] for n in range(5))),
            base3(*(second[:, 8 * n : 8 * n + 8] for n in range(5))),
            base3(*(last[:, 2 * n : 2 * n + 2] for n in range(4))),
        ],
        axis=1,
    )


def q1_0(values: np.ndarray) -> np.ndarray:
    return np.packbits(values >> 1, axis=1, bitorder="little")


def stq1_0(values: np.ndarray) -> np.ndarray:
    book = bytes.fromhex(STQ1_0_BOOK)
    groups = values.reshape(-1, 4, 4, 16).swapaxes(2, 3).reshape(len(values), 64, 4)
    patterns = groups[:, :, 0] | groups[:, :, 1] << 2 | groups[:, :, 2] << 4 | groups[:, :, 3] << 6
    index = np.array([book.find(bytes([pattern])) for pattern in range(256)])[patterns]
    slots = (index & 15).astype(np.uint8)
    signs = np.packbits((index >> 4).astype(np.uint8), axis=1, bitorder="little")
    return np.concatenate([slots[:, ::2] | slots[:, 1::2] << 4, signs], axis=1)


def floats(values: np.ndarray, dtype: str) -> np.ndarray:
    real = (values.astype(np.float32) - 1) * np.float32(SCALE)
    if dtype == "bf16":
        return (real.view("<u4") >> 16).astype("<u2").view(np.uint8).reshape(-1)
    return real.astype(dtype).view(np.uint8).reshape(-1)


@dataclass
class Entry:
    """One file. runs: the type that `format` must name; refused: an expression that the one message must match."""

    keys: dict[str, Any]
    tensors: dict[str, tuple[int, tuple[int, ...], np.ndarray]]
    runs: str = ""
    refused: str = ""
    expected: Callable[[int], np.ndarray] | None = None
    extra: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        path.write_bytes(gguf(self.keys, self.tensors))
        return path


def gguf(keys: Mapping[str, Any], tensors: Mapping[str, tuple[int, tuple[int, ...], np.ndarray]]) -> bytes:
    """Return a GGUF v3 file. Tensors: type id, shape (last dimension innermost), bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(key) + value_of(value) for key, value in keys.items())
    offset, data = 0, b""
    for name, (type_id, shape, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QiQ", len(shape), *reversed(shape), type_id, offset)
        data += content.tobytes() + bytes(-content.nbytes % 32)
        offset = len(data)
    return head + bytes(-len(head) % 32) + data


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_of(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<i?", 7, value)
    if isinstance(value, int):
        return struct.pack("<iI", 4, value)
    if isinstance(value, float):
        return struct.pack("<if", 6, value)
    if isinstance(value, str):
        return struct.pack("<i", 8) + text(value)
    if isinstance(value, np.ndarray) and value.dtype == np.bool_:
        return struct.pack("<iiQ", 9, 7, len(value)) + value.tobytes()
    if all(isinstance(item, str) for item in value):
        return struct.pack("<iiQ", 9, 8, len(value)) + b"".join(map(text, value))
    return struct.pack(f"<iiQ{len(value)}i", 9, 5, len(value), *value)


def tokenizer(pre: str | None = "llama-bpe") -> dict[str, Any]:
    letters = [chr(33 + n) for n in range(VOCAB - 3)]
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*letters, "Ġ", "<|im_end|>", "<|eot_id|>"],
        "tokenizer.ggml.token_type": [1] * (VOCAB - 2) + [3, 3],
        "tokenizer.ggml.merges": ["a b"] if "ab" in letters else [],
        "tokenizer.ggml.bos_token_id": VOCAB - 1,
        "tokenizer.ggml.eos_token_id": VOCAB - 2,
    }
    return keys if pre is None else keys | {"tokenizer.ggml.pre": pre}


def shape_keys(arch: str, **more: Any) -> dict[str, Any]:
    keys = {
        "context_length": 64,
        "embedding_length": HIDDEN,
        "block_count": 1,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HIDDEN // HEAD,
        "attention.head_count_kv": HIDDEN // HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "vocab_size": VOCAB,
    }
    return {"general.architecture": arch, "general.name": "corpus"} | {
        f"{arch}.{name}": value for name, value in (keys | more).items()
    }


def vector(value: float = 1.0, count: int = HIDDEN) -> tuple[int, tuple[int, ...], np.ndarray]:
    return 0, (count,), np.full(count, value, "<f4").view(np.uint8)


def model(
    type_id: int, data: np.ndarray, arch: str = "llama", pre: str | None = "llama-bpe", **more: Any
) -> tuple[dict[str, Any], dict[str, tuple[int, tuple[int, ...], np.ndarray]]]:
    """Return keys and tensors of a model whose matrices all have this type and these bytes."""
    embedding = np.random.default_rng(0).standard_normal((VOCAB, HIDDEN)).astype("<f2")
    tensors = {"token_embd.weight": (1, (VOCAB, HIDDEN), embedding.view(np.uint8)), "output_norm.weight": vector()}
    for norm in ("attn_norm", "ffn_norm"):
        tensors[f"blk.0.{norm}.weight"] = vector()
    if arch.startswith("bitnet"):
        tensors |= {f"blk.0.{norm}.weight": vector() for norm in ("attn_sub_norm", "ffn_sub_norm")}
    if arch in ("qwen3", "hunyuan-dense", "maple"):
        tensors |= {f"blk.0.{norm}.weight": vector(count=HEAD) for norm in ("attn_q_norm", "attn_k_norm")}
    for name in LINEARS:
        tensors[f"blk.0.{name}.weight"] = (type_id, (HIDDEN, HIDDEN), data)
    return shape_keys(arch, **more) | tokenizer(pre), tensors


def mixture(type_id: int, data: np.ndarray, arch: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keys and tensors of a model with two experts, of which a token uses one."""
    keys, tensors = model(type_id, data, arch, "qwen2", **more)
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        del tensors[f"blk.0.{name}.weight"]
        tensors[f"blk.0.{name}_exps.weight"] = (type_id, (2, HIDDEN, HIDDEN), np.concatenate([data.reshape(-1)] * 2))
    router = np.random.default_rng(0).standard_normal((2, HIDDEN)).astype("<f4")
    tensors["blk.0.ffn_gate_inp.weight"] = (0, (2, HIDDEN), router.view(np.uint8))
    keys |= {f"{arch}.expert_count": 2, f"{arch}.expert_used_count": 1, f"{arch}.expert_feed_forward_length": HIDDEN}
    return keys, tensors


def layouts() -> dict[str, Entry]:
    """Return one model for each ternary layout under each id that a published tool has used for it."""
    values, binary, sparse = codes(), codes(zeros=False), sparse_codes()
    known: dict[str, tuple[int, np.ndarray, str, Callable[[int], np.ndarray]]] = {
        "i2_s": (36, i2_s(values), "I2_S", codes),
        "tq1_0": (34, blocks(values, 256, tq1_0, True), "TQ1_0", codes),
        "tq2_0": (35, blocks(values, 256, tq2_0, True), "TQ2_0", codes),
        "q2_0-64": (42, blocks(values, 64, quarters, False), "Q2_0", codes),
        "q2_0-128": (42, blocks(values, 128, quarters, False), "Q2_0_128", codes),
        "stq1_0-early": (42, blocks(sparse, 256, stq1_0, True), "STQ1_0", sparse_codes),
        "stq1_0": (43, blocks(sparse, 256, stq1_0, True), "STQ1_0", sparse_codes),
        "pq2_0": (142, blocks(values, 128, quarters, False), "PQ2_0", codes),
        "ptq1_0": (143, blocks(values, 128, ptq1_0, True), "PTQ1_0", codes),
        "q1_0": (41, blocks(binary, 128, q1_0, False), "Q1_0", lambda rows: codes(rows, zeros=False)),
        "f32": (0, floats(values, "<f4"), "F32", codes),
        "f16": (1, floats(values, "<f2"), "F16", codes),
        "bf16": (30, floats(values, "bf16"), "BF16", codes),
    }
    found = {
        name: Entry(*model(type_id, data), runs=kind, expected=expected)
        for name, (type_id, data, kind, expected) in known.items()
    }
    rows, count = HIDDEN, HIDDEN * HIDDEN
    header = np.tile(_HALF, rows).reshape(rows, 2)
    bn = np.concatenate([header, np.zeros((rows, HIDDEN // 64 * 13), np.uint8)], axis=1).reshape(-1)
    found["iq1_bn"] = Entry(*model(134, bn), runs="IQ1_BN")
    singles = np.tile(_SINGLE, rows).reshape(rows, 4)
    two = np.concatenate([singles, np.full((rows, HIDDEN // 4), 0x55, np.uint8)], axis=1).reshape(-1)
    found["iq2_bn"] = Entry(*model(135, two), runs="IQ2_BN")
    four = np.concatenate([np.tile(_SINGLE, (rows // 4, 4)), np.full((rows // 4, HIDDEN), 0x55, np.uint8)], axis=1)
    found["iq2_bn_r4"] = Entry(*model(335, four.reshape(-1)), runs="IQ2_BN_R4")
    four_levels = blocks(np.random.default_rng(0).integers(0, 4, (rows, HIDDEN)).astype(np.uint8), 64, quarters, False)
    found["gsq"] = Entry(*model(42, four_levels), refused="four levels .as in Q2_0 files of GSQ")
    integers = blocks(sparse, 256, stq1_0, True).reshape(-1, 42)
    integers[:, 40:] = np.array([655], "<i2").view(np.uint8)
    found["stq1_0-v2"] = Entry(*model(43, integers.reshape(-1)), refused="STQ1_0 .*variant v2")
    found["masters"] = Entry(
        *model(1, np.random.default_rng(0).standard_normal(count).astype("<f2").view(np.uint8)), refused="not ternary"
    )
    # IQ2_TN with a scale a row is not here: at 256 columns, and there alone, it has the size of PQ2_0
    foreign = {
        "iq1_bn-2024-31": (31, count // 64 * 13, "IQ1_BN.*no row scales"),
        "iq2_bn-2024-32": (32, count // 4, "IQ2_BN.*no row scales"),
        "iq1_bn-2024-34": (34, count // 64 * 13, "IQ1_BN.*no row scales"),
        "iq2_bn-2024-35": (35, count // 4, "IQ2_BN.*no row scales"),
        "iq1_bn-2024-134": (134, count // 64 * 13, "IQ1_BN.*no row scales"),
        "iq2_bn-2024-135": (135, count // 4, "IQ2_BN.*no row scales"),
        "iq2_tn-66": (142, count // 256 * 66, "IQ2_TN.*ik_llama.cpp"),
        "iq1_tn-52": (143, rows * 2 + count // 256 * 52, "IQ1_TN.*ik_llama.cpp"),
        "iq1_tn-54": (143, count // 256 * 54, "IQ1_TN.*ik_llama.cpp"),
        "q4_0_4_4": (31, count // 32 * 18, "Q4_0_4_4.*removed"),
        "q4_0_4_8": (32, count // 32 * 18, "Q4_0_4_8.*removed"),
        "q4_0_8_8": (33, count // 32 * 18, "Q4_0_8_8.*removed"),
        "iq4_nl_4_4": (36, count // 32 * 18, "IQ4_NL_4_4.*removed"),
        "iq4_nl_4_8": (37, count // 32 * 18, "IQ4_NL_4_8.*removed"),
        "iq4_nl_8_8": (38, count // 32 * 18, "IQ4_NL_8_8.*removed"),
        "i2_s-qk256": (36, count // 4, "QK256 layout of bitnet-rs"),
        "tl1": (38, count // 4 + 32, "tile"),
        "tl2": (39, (256 * rows) // 2 // 2 + 32, "tile|TL2"),
        "unknown": (250, count, "unknown type id 250"),
    }
    for name, (type_id, size, words) in foreign.items():
        found[name] = Entry(*model(type_id, np.zeros(size, np.uint8)), refused=words)
    return found


def general_types() -> dict[str, tuple[int, int, int]]:
    """Return id, elements and bytes of a block of ggml's types with more bits a weight."""
    return {
        "Q4_0": (2, 32, 18),
        "Q4_1": (3, 32, 20),
        "Q5_0": (6, 32, 22),
        "Q5_1": (7, 32, 24),
        "Q8_0": (8, 32, 34),
        "Q2_K": (10, 256, 84),
        "Q3_K": (11, 256, 110),
        "Q4_K": (12, 256, 144),
        "Q5_K": (13, 256, 176),
        "Q6_K": (14, 256, 210),
        "IQ2_XXS": (16, 256, 66),
        "IQ2_XS": (17, 256, 74),
        "IQ3_XXS": (18, 256, 98),
        "IQ1_S": (19, 256, 50),
        "IQ4_NL": (20, 32, 18),
        "IQ3_S": (21, 256, 110),
        "IQ2_S": (22, 256, 82),
        "IQ4_XS": (23, 256, 136),
        "IQ1_M": (29, 256, 56),
        "MXFP4": (39, 32, 17),
        "NVFP4": (40, 64, 36),
    }


def tables() -> dict[str, Entry]:
    """Return models whose matrices, or whose embedding, have each of the general types."""
    found = {}
    for name, (type_id, elements, size) in general_types().items():
        zeros = np.zeros(HIDDEN * HIDDEN // elements * size, np.uint8)
        found[f"matrix-{name}"] = Entry(*model(type_id, zeros), refused=f"{name}.*holds no ternary weights")
        keys, tensors = model(36, i2_s(codes()))
        tensors["token_embd.weight"] = (type_id, (VOCAB, HIDDEN), zeros[: VOCAB * HIDDEN // elements * size])
        if name in ("IQ1_S", "IQ1_M", "NVFP4"):
            found[f"embedding-{name}"] = Entry(keys, tensors, refused=f"{name} is not supported in an embedding")
        else:
            found[f"embedding-{name}"] = Entry(keys, tensors, runs="I2_S")
    return found


def hy_mt() -> tuple[dict[str, Any], dict[str, tuple[int, tuple[int, ...], np.ndarray]]]:
    scaling = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 64}
    head = {"attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD}
    data = blocks(sparse_codes(), 256, stq1_0, True)
    return model(42, data, "hunyuan-dense", "hunyuan-dense", **head, **scaling)


def key_sets() -> dict[str, Entry]:
    """Return models with the keys of published files, and files that are not a supported model."""
    one, grouped = i2_s(codes()), blocks(codes(), 128, quarters, False)
    blocks_of_256 = blocks(codes(), 256, tq2_0, True)
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    head = {"attention.key_length": HEAD, "attention.value_length": HEAD}
    windows = {"attention.sliding_window": 2, "attention.sliding_window_pattern": np.array([True])}
    scales = {"embedding_scale": 12.0, "residual_scale": 0.25, "logit_scale": 4.0}
    found = {
        "bitnet-2b-4t": Entry(*model(36, one, "bitnet-b1.58", None, **{"rope.dimension_count": HEAD}), runs="I2_S"),
        "bitnet-25": Entry(*model(36, one, "bitnet-25"), runs="I2_S"),
        "bitnet-3b": Entry(*model(36, one, "bitnet", "default"), runs="I2_S"),
        "llama3-8b-1.58": Entry(*model(36, one, **{"rope.dimension_count": HEAD}), runs="I2_S"),
        "falcon-e": Entry(*model(36, one, pre="falcon_e"), runs="I2_S"),
        "falcon3": Entry(*model(36, one, pre="falcon3"), runs="I2_S"),
        "trilm": Entry(*model(35, blocks_of_256, pre="gpt-neox"), runs="TQ2_0"),
        "ternary-bonsai": Entry(*model(142, grouped, "qwen3", "qwen2", **head, **yarn), runs="PQ2_0"),
        "bitcpm4": Entry(*model(35, blocks_of_256, "minicpm", "gpt-2", **scales), runs="TQ2_0"),
        "bitcpm4-without-scales": Entry(*model(35, blocks_of_256, "minicpm"), refused="has no key minicpm"),
        "maple": Entry(*mixture(35, blocks_of_256, "maple", **head, **windows), runs="TQ2_0"),
        "maple-without-windows": Entry(*mixture(35, blocks_of_256, "maple"), refused="sliding_window' is missing"),
        "qwen3moe": Entry(*mixture(35, blocks_of_256, "qwen3moe"), refused="qwen3moe is not supported: a mixture of"),
        "hy-mt": Entry(*hy_mt(), runs="STQ1_0", expected=sparse_codes),
        "gemma3": Entry(*model(36, one, "gemma3"), refused="gemma3 is not supported: GELU"),
        "mmproj": Entry(*model(1, floats(codes(), "<f2"), "clip"), refused="vision tower"),
        "experts": Entry(*model(36, one, expert_count=8), refused="expert_count' is not supported"),
        "rotated-llama": Entry(*model(142, grouped), refused="the weights are rotated"),
        "unheard-of-pre": Entry(*model(36, one, pre="unheard-of"), refused="unknown pre-tokenizer 'unheard-of'"),
    }
    found["rotated-llama"].keys["prism.hadamard.version"] = 1
    head_model = found["bitnet-25"]
    head_model.tensors["output.weight"] = head_model.tensors["token_embd.weight"]
    merged = Entry(*model(36, one), runs="I2_S")
    merged.keys |= {"split.count": 0, "split.no": 0}
    part = Entry(*model(36, one), refused="one of 3 parts")
    part.keys |= {"split.count": 3, "split.no": 0}
    vocabulary = Entry(shape_keys("llama") | tokenizer(), {}, refused="a vocabulary, not a model")
    return found | {"merged": merged, "part": part, "vocabulary": vocabulary}


def entries() -> dict[str, Entry]:
    return layouts() | tables() | key_sets()


if __name__ == "__main__":
    destination = Path(sys.argv[1])
    destination.mkdir(parents=True, exist_ok=True)
    for file, entry in entries().items():
        entry.write(destination / f"{file}.gguf")
