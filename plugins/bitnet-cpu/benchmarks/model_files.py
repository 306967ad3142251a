"""Write the synthetic models of a comparison.

2B-4T is written as I2_S for bitnet and as TQ2_0 for llama.cpp, Ternary Bonsai 1.7B as Q2_0 with 64 columns per scale,
which both read.

    python model_files.py FOLDER

The 2B-4T files hold the same random codes; `q6k` in a name means a q6_K head (random blocks) instead of the f16 one.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.synthetic import SyntheticSource

U8 = npt.NDArray[np.uint8]

# A byte of an I2_S block holds the codes of its four planes from the high bits down, a TQ2_0 byte from the low bits up.
REVERSED = np.array([(b & 3) << 6 | (b >> 2 & 3) << 4 | (b >> 4 & 3) << 2 | b >> 6 for b in range(256)], np.uint8)


def i2_s(codes: U8, scale: float) -> U8:
    """Return codes u8[rows, columns / 4], then one f32 scale and padding."""
    tail = np.zeros(32, np.uint8)
    tail[:4] = np.array([scale], "<f4").view(np.uint8)
    return np.concatenate([codes.reshape(-1), tail])


def tq2_0(codes: U8, scale: float) -> U8:
    """Return blocks of 256 columns: 64 bytes of codes, f16 scale."""
    blocks = np.empty((codes.size // 64, 66), np.uint8)
    blocks[:, :64] = REVERSED[codes.reshape(-1, 64)]
    blocks[:, 64:] = np.array([scale], "<f2").view(np.uint8)
    return blocks.reshape(-1)


def q6_k(rows: int, columns: int) -> U8:
    """Return random q6_K rows whose values have a standard deviation of about 0.02."""
    blocks = np.random.default_rng(1).integers(0, 256, (rows * columns // 256, 210), np.uint8)
    blocks[:, 192:208] = 1
    blocks[:, 208:] = np.array([0.001], "<f2").view(np.uint8)
    return blocks.reshape(-1)


def write(path: Path, ternary: str, head: str) -> None:
    """Write a GGUF file with ternary weights of type `ternary` and an embedding of type `head` (the tied output)."""
    source = SyntheticSource("2b4t")
    config = source.config
    arch = "bitnet-b1.58" if ternary == "I2_S" else "bitnet"
    with GGUFWriter(path) as out:
        out.metadata("general.architecture", arch)
        out.metadata("general.name", config.name)
        out.metadata(f"{arch}.context_length", config.context)
        out.metadata(f"{arch}.embedding_length", config.hidden)
        out.metadata(f"{arch}.block_count", config.n_layers)
        out.metadata(f"{arch}.feed_forward_length", config.ffn)
        out.metadata(f"{arch}.attention.head_count", config.n_heads)
        out.metadata(f"{arch}.attention.head_count_kv", config.n_kv_heads)
        out.metadata(f"{arch}.attention.layer_norm_rms_epsilon", config.norm_eps)
        out.metadata(f"{arch}.rope.freq_base", config.rope_theta)
        out.metadata(f"{arch}.rope.dimension_count", config.head_dim)
        out.metadata(f"{arch}.vocab_size", config.vocab)
        for key, value in source.tokenizer.items():
            if key.startswith("tokenizer."):
                out.metadata(key, np.array(value, np.int32) if key.endswith("token_type") else value)
        rows, columns = config.vocab, config.hidden
        head_bytes = rows * columns * 2 if head == "F16" else rows * columns // 256 * 210
        out.tensor("token_embd.weight", (rows, columns), head, head_bytes)
        names = []
        for layer in range(config.n_layers):
            for name, (n, k) in config.linears(layer).items():
                nbytes = n * k // 4 + 32 if ternary == "I2_S" else n * k // 256 * 66
                out.tensor(f"blk.{layer}.{name}.weight", (n, k), ternary, nbytes)
                names.append(f"blk.{layer}.{name}")
            for name in ("attn_norm", "attn_sub_norm", "ffn_norm", "ffn_sub_norm"):
                width = config.ffn if name == "ffn_sub_norm" else config.hidden
                out.tensor(f"blk.{layer}.{name}.weight", (width,), "F32", width * 4)
                names.append(f"blk.{layer}.{name}")
        out.tensor("output_norm.weight", (config.hidden,), "F32", config.hidden * 4)
        names.append("output_norm")
        table = source.dense("token_embd").data.reshape(-1) if head == "F16" else q6_k(rows, columns)
        out.write("token_embd.weight", [table])
        for name in names:
            if name.endswith("norm"):
                data: npt.NDArray[np.generic] = source.vector(name)
            else:
                weight = source.ternary(name)
                data = (i2_s if ternary == "I2_S" else tq2_0)(weight.codes, float(weight.scales[0]))
            out.write(name + ".weight", [data])


def main(folder: Path) -> None:
    """Write all five files in parallel; existing ones are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [(ternary, head) for ternary in ("I2_S", "TQ2_0") for head in ("F16", "Q6_K")]
    paths = {
        folder / f"2b4t-{ternary}-{head}.gguf".lower().replace("_", ""): (ternary, head) for ternary, head in kinds
    }
    with ProcessPoolExecutor() as pool:
        for done in [pool.submit(write, path, *kind) for path, kind in paths.items() if not path.exists()]:
            done.result()
    bonsai = folder / "bonsai-1.7b-q20.gguf"
    if not bonsai.exists():
        convert(SyntheticSource("bonsai-1.7b"), bonsai, "q2_0")
    for path in [*paths, bonsai]:
        print(f"{path}  {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
