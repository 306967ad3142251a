"""Write GGUF files of shapes with experts or delta nets, which `bitnet convert` does not write, for both programs.

    python random_gguf.py maple-20b FOLDER [--layers 12] [--head q6_k]
    python random_gguf.py bonsai-27b FOLDER [--layers 8]

Maple is written as TQ2_0 with an f16 or q6_K embedding and head, Bonsai 27B (not rotated) as Q2_0 with 64 columns per
scale and a ternary embedding and head. Fewer layers than those of the shape make a file for short runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_core.formats.gguf import qwen35
from bitnet_core.formats.gguf.types import BY_NAME
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.names import floats, tables, ternaries, vectors
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.model.config import ModelConfig, Windows
from compare import file_name
from model_files import q6_k, tq2_0

U8 = npt.NDArray[np.uint8]
HEAD_SHIFT = 1009
"""The number of rows by which the head is rotated against the embedding.

The layers add little, so greedy decoding then chooses another token, with other experts, at each step; the experts of a
repeated token would stay in the cache.
"""
SMALL = np.float32(2**-10)
"""The norm weights of the layers."""
TERNARY = {"maple-20b": "TQ2_0", "bonsai-27b": "Q2_0"}


class Shallow(SyntheticSource):
    """A synthetic source with the first layers of a shape."""

    def __init__(self, shape: str, layers: int) -> None:
        super().__init__(shape)
        config = replace(self.config, n_layers=layers)
        if config.windows:
            config = replace(config, windows=Windows(config.windows.size, config.windows.layers[:layers]))
        self.config = config


def q2_0(codes: U8, scale: float) -> U8:
    """Return blocks of 64 columns, f16 scale and 16 bytes of codes, whose order does not matter if they are random."""
    blocks = np.empty((codes.size // 16, 18), np.uint8)
    blocks[:, 2:] = codes.reshape(-1, 16)
    blocks[:, :2] = np.array([scale], "<f2").view(np.uint8)
    return blocks.reshape(-1)


PACK: dict[str, Callable[[U8, float], U8]] = {"TQ2_0": tq2_0, "Q2_0": q2_0}


def metadata(source: Shallow) -> dict[str, Any]:
    """Return the key-values of llama.cpp's converters that both programs read."""
    config = source.config
    own: dict[str, Any] = {
        "block_count": config.n_layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.ffn,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.rope_dim,
        "vocab_size": config.vocab,
    } | _special(config)
    tokenizer = {
        key: np.array(value, np.int32) if key.endswith("token_type") else value
        for key, value in source.tokenizer.items()
        if key.startswith("tokenizer.")
    }
    names = {"general.architecture": config.arch, "general.name": config.name}
    return names | {f"{config.arch}.{key}": value for key, value in own.items()} | tokenizer


def _special(config: ModelConfig) -> dict[str, Any]:
    if config.experts and config.windows:
        return {
            "attention.sliding_window": config.windows.size,
            "attention.sliding_window_pattern": np.array(config.windows.layers),
            "expert_count": config.experts.count,
            "expert_used_count": config.experts.used,
            "expert_feed_forward_length": config.ffn,
            "swiglu_clamp_exp": np.full(config.n_layers, config.experts.limit, np.float32),
        }
    assert config.delta
    return {
        "full_attention_interval": config.delta.interval,
        "ssm.conv_kernel": config.delta.conv,
        "ssm.state_size": config.delta.key_dim,
        "ssm.group_count": config.delta.key_heads,
        "ssm.time_step_rank": config.delta.value_heads,
        "ssm.inner_size": config.delta.value_width,
        "rope.dimension_sections": np.array([11, 11, config.rope_dim // 2 - 22, 0], np.int32),
    }


def stored_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all ternary tensors but the tables, as files have them, by ModelSource's name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns) in ternaries(config).items():
        layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
        if layer < 0 or (config.delta and not config.is_delta(layer) and name.endswith("attn_gate")):
            continue
        if config.experts and name.endswith("_exps"):
            shapes[name] = (config.experts.count, rows // config.experts.count, columns)
        elif config.delta and name.endswith("attn_q"):
            shapes[name] = (2 * rows, columns)  # queries and gates
        else:
            shapes[name] = (rows, columns)
    return shapes


@dataclass(frozen=True)
class Random:
    """The tensors of a source as a file has them. kind: the ternary type. head: the type of the tables."""

    source: Shallow
    kind: str
    head: str

    def tensors(self) -> dict[str, tuple[tuple[int, ...], str, Callable[[], npt.NDArray[Any]]]]:
        """Return shape, type and maker of each tensor by its name in the file."""
        config = self.source.config
        found: dict[str, tuple[tuple[int, ...], str, Callable[[], npt.NDArray[Any]]]] = {}
        for name, table in tables(config).items():
            found[name] = table, self.head, partial(self.table, name, *table)
        for name, width in vectors(config).items():
            found[name] = (width,), "F32", partial(self.norm, name)
        for name, size in floats(config).items():
            found[name] = size, "F32", partial(self.floats, size)
        for name, shape in stored_shapes(config).items():
            found[name] = shape, self.kind, partial(self.packed, shape)
        return {self.stored_name(name): tensor for name, tensor in found.items()}

    def stored_name(self, name: str) -> str:
        config = self.source.config
        own = qwen35.stored_name(config, name) if config.delta else name
        return own if own.endswith(("ssm_a", ".bias")) else f"{own}.weight"

    def packed(self, shape: tuple[int, ...]) -> U8:
        codes = self.source.ternary("blk.0.attn_qkv" if self.source.config.delta else "blk.0.ffn_down_exps").codes
        return PACK[self.kind](np.resize(codes, int(np.prod(shape)) // 4), shape[-1] ** -0.5)

    def table(self, name: str, rows: int, columns: int) -> U8:
        if self.head == self.kind:
            data = self.packed((rows, columns))
        else:
            data = q6_k(rows, columns) if self.head == "Q6_K" else self.source.dense(name).data.reshape(-1)
        return np.roll(data.reshape(rows, -1), HEAD_SHIFT if name == "output" else 0, axis=0)

    def norm(self, name: str) -> npt.NDArray[np.float32]:
        return self.source.vector(name) * (SMALL if name.endswith((".attn_norm", ".ffn_norm")) else 1)

    def floats(self, size: tuple[int, int]) -> npt.NDArray[np.float32]:
        return (0.02 * np.random.default_rng(1).standard_normal(size)).astype(np.float32)


def write(shape: str, layers: int, head: str, path: Path) -> None:
    """Write the file with one tensor in memory at a time."""
    source, kind = Shallow(shape, layers), TERNARY[shape]
    tensors = Random(source, kind, kind if source.config.ternary_tables else head.upper()).tensors()
    with GGUFWriter(path) as out:
        for key, value in metadata(source).items():
            out.metadata(key, value)
        for name, (size, dtype, _) in tensors.items():
            out.tensor(name, size, dtype, BY_NAME[dtype].nbytes(size) or 0)
        for name, (_, _, make) in tensors.items():
            out.write(name, [make()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=TERNARY)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, help="default: all of the shape")
    parser.add_argument("--head", default="f16", choices=("f16", "q6_k"), help="of maple-20b")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    layers = options.layers or SHAPES[options.shape].n_layers
    path = options.folder / file_name(options.shape, layers, options.head)
    write(options.shape, layers, options.head, path)
    print(f"{path}  {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
