"""Tokens per second of embeddings: bitnet, and sentence-transformers with a float model of the same shape.

    python benchmarks/embedding.py ours [--device cpu] [--synthetic embedding-0.6b]
    python benchmarks/embedding.py peer TOKENIZER_FOLDER [--dtype float32|bfloat16]

The shape is that of BitNet-embedding 0.6B (28 layers, hidden 1,024), the weights are random. The peer is
transformers' Qwen3Model, without the norms and the int8 rounding of BitNet-embedding's layers, which would only slow it
down; sentence-transformers sorts texts by length and pads each batch. TOKENIZER_FOLDER holds a byte-level tokenizer,
such as core/tests/golden/embedding/folder. Texts are 8 to 256 letters, a token each. To compare, run both in turns.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path


def texts(count: int) -> list[str]:
    """Return texts of 8 to 256 letters that no merge joins."""
    draw = random.Random(0)
    return ["".join(draw.choices("bcdfgjklm", k=draw.randint(8, 256))) for _ in range(count)]


def report(name: str, embed: Callable[[list[str]], object], count: int, repeat: int) -> None:
    """Embed the texts several times, and print the rates and the milliseconds of processor time a token."""
    given = texts(count)
    tokens = sum(len(text) + 1 for text in given)
    embed(given[:2])
    rates, costs = [], []
    for _ in range(repeat):
        began, used = time.perf_counter(), time.process_time()
        embed(given)
        rates.append(tokens / (time.perf_counter() - began))
        costs.append(1000 * (time.process_time() - used) / tokens)
    print(
        f"{name}: {count} texts, {tokens} tokens, {_listed(rates)} tokens/s, {_listed(costs)} ms of processor time each"
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in sorted(values))


def ours(options: argparse.Namespace) -> None:
    """Measure the embeddings of bitnet."""
    import bitnet_core
    from bitnet_core.formats.synthetic import SyntheticSource

    with bitnet_core.load(SyntheticSource(options.synthetic), options.device) as model:
        name = f"bitnet {model.device.info.request} ({model.device.info.name})"
        report(name, model.embed, options.texts, options.repeat)


def peer(options: argparse.Namespace) -> None:
    """Measure the embeddings of sentence-transformers."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import Qwen3Config, Qwen3Model

    torch.set_num_threads(options.threads)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
    )
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(options.folder, folder, dirs_exist_ok=True)
        (Path(folder) / "model.safetensors").unlink(missing_ok=True)
        dtype = getattr(torch, options.dtype)
        torch.set_default_dtype(dtype)
        Qwen3Model(config).to(dtype).save_pretrained(folder)
        torch.set_default_dtype(torch.float32)
        model = SentenceTransformer(folder, device="cpu", model_kwargs={"torch_dtype": dtype})
    name = f"sentence-transformers {options.dtype}, {options.threads} threads"
    embed = partial(model.encode, batch_size=32, convert_to_tensor=True)
    report(name, embed, options.texts, options.repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("ours")
    first.add_argument("--device", default="cpu")
    first.add_argument("--synthetic", default="embedding-0.6b")
    first.set_defaults(run=ours)
    second = commands.add_parser("peer")
    second.add_argument("folder")
    second.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    second.add_argument("--threads", type=int, default=os.cpu_count())
    second.set_defaults(run=peer)
    for command in (first, second):
        command.add_argument("--texts", type=int, default=16)
        command.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
