"""Writes a GGUF file of a real shape with random ternary weights, to measure loading and speed without a download.

    python benchmarks/make_gguf.py 2b4t /tmp/2b4t.gguf      # 1.18 GB
    bitnet bench -m /tmp/2b4t.gguf --layout A -p 16 -n 8

The layout has to be named: random weights give no evidence of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.synthetic import SHAPES, SyntheticSource
from bitnet_core.formats.ternary import i2_s


def write(source: SyntheticSource, path: Path) -> None:
    """One tensor is in memory at a time."""
    config = source.config
    norms = ["attn_norm", "ffn_norm", "attn_sub_norm", "ffn_sub_norm"]
    blocks = [f"blk.{layer}." for layer in range(config.n_layers)]
    vectors = ["output_norm", *(block + norm for block in blocks for norm in norms)]
    linears = {
        block + name: shape for layer, block in enumerate(blocks) for name, shape in config.linears(layer).items()
    }
    with GGUFWriter(path) as writer:
        writer.metadata("general.architecture", config.arch)
        writer.metadata("general.name", config.name)
        for key, value in {
            "vocab_size": config.vocab,
            "context_length": config.context,
            "embedding_length": config.hidden,
            "block_count": config.n_layers,
            "feed_forward_length": config.ffn,
            "attention.head_count": config.n_heads,
            "attention.head_count_kv": config.n_kv_heads,
            "attention.layer_norm_rms_epsilon": config.norm_eps,
            "rope.dimension_count": config.head_dim,
            "rope.freq_base": config.rope_theta,
        }.items():
            writer.metadata(f"{config.arch}.{key}", value)
        for key, value in source.tokenizer.items():
            if key.startswith("tokenizer."):
                ids = isinstance(value, list) and isinstance(value[0], int)
                writer.metadata(key, np.array(value, np.int32) if ids else value)
        table = source.dense("token_embd")
        writer.tensor("token_embd.weight", (table.rows, table.columns), "F16", table.data.nbytes)
        for name in vectors:
            writer.tensor(f"{name}.weight", source.vector(name).shape, "F32", source.vector(name).nbytes)
        for name, (rows, columns) in linears.items():
            writer.tensor(f"{name}.weight", (rows, columns), "I2_S", rows * columns // 4 + 32)
        writer.write("token_embd.weight", [table.data])
        for name in vectors:
            writer.write(f"{name}.weight", [source.vector(name)])
        for name in linears:
            writer.write(f"{name}.weight", [i2_s.encode(source.ternary(name))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write(SyntheticSource(arguments.shape), arguments.path)


if __name__ == "__main__":
    main()
