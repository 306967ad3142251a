"""Write a GGUF file of a real shape with random ternary weights, to measure loading and speed without a download.

    python benchmarks/make_gguf.py 2b4t /tmp/2b4t.gguf      # 1.18 GB
    bitnet bench -m /tmp/2b4t.gguf --layout A -p 16 -n 8
    python benchmarks/make_gguf.py 2b4t /tmp/2b4t.gguf --texts /usr/share    # a full vocabulary, as in Llama 3

The commands need `--layout`, because random weights give no evidence of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bitnet_core.formats.convert.gguf import write_gguf
from bitnet_core.formats.convert.target import ENCODINGS
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.formats.ternary import i2_s
from bitnet_core.tokenizer.pretokenizers import pre_tokenizer
from bitnet_core.tokenizer.vocabulary import MAX_TOKEN_CHARS
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

SPECIALS = 256
MOST_TEXT = 60_000_000  # characters


class Trained(SyntheticSource):
    """A synthetic source with a byte-level vocabulary of the shape's size.

    Its merges are all splits of a token into two, as in Llama 3's files.
    """

    def __init__(self, shape: str, folder: Path) -> None:
        super().__init__(shape)
        rule, count = pre_tokenizer("llama-bpe", []), self.config.vocab - SPECIALS
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=count, initial_alphabet=letters, show_progress=False, max_token_length=MAX_TOKEN_CHARS
        )
        trained.train_from_iterator(texts(folder), trainer)
        ids = trained.get_vocab()
        if len(ids) < count:
            raise SystemExit(f"the texts of {folder} yield {len(ids)} tokens, but {count} are needed")
        self._ids = dict(sorted(ids.items(), key=lambda entry: entry[1]))

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """The tokenizer.* keys of a GGUF file."""
        merges = [merge for text in self._ids for merge in self._cuts(text)]
        names = ["begin_of_text", "end_of_text", *(f"special_{number}" for number in range(SPECIALS - 2))]
        first = len(self._ids)
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": [*self._ids, *(f"<|{name}|>" for name in names)],
            "tokenizer.ggml.token_type": [1] * first + [3] * SPECIALS,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": first,
            "tokenizer.ggml.eos_token_id": first + 1,
        }

    def _cuts(self, text: str) -> list[str]:
        """Return the splits of a token into two, the commonest left part first."""
        ids, cuts = self._ids, ((text[:at], text[at:]) for at in range(1, len(text)))
        both = [(left, right) for left, right in cuts if left in ids and right in ids]
        return [f"{left} {right}" for left, right in sorted(both, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]


def texts(folder: Path) -> Iterator[str]:
    """Yield the UTF-8 files below a folder, up to MOST_TEXT characters."""
    left = MOST_TEXT
    for path in sorted(folder.rglob("*")):
        try:
            text = path.read_text("utf-8")[: 1 << 18]
        except (OSError, ValueError):  # a folder, or not a text
            continue
        yield text
        left -= len(text)
        if left < 0:
            return


def write(source: SyntheticSource, path: Path) -> None:
    """Write the file with one tensor in memory at a time.

    I2_S holds BitNet's shapes; those with a scale for each group of columns are written as PQ2_0, as their publisher's.
    """
    config = source.config
    if config.delta or config.experts:
        raise SystemExit(f"{config.name} is not a shape that can be written here")
    if config.activation_group_size:
        write_gguf(source, path, ENCODINGS["pq2_0"], lambda weights: None)
        return
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
    parser.add_argument("--texts", type=Path, help="a folder of texts to train a vocabulary on")
    arguments = parser.parse_args()
    source = Trained(arguments.shape, arguments.texts) if arguments.texts else SyntheticSource(arguments.shape)
    write(source, arguments.path)


if __name__ == "__main__":
    main()
