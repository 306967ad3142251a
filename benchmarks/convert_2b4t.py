"""Measure time and memory of converting a folder of bf16 master weights of the 2B-4T shape (4.8 GB, random) to GGUF.

    python benchmarks/convert_2b4t.py FOLDER [--to i2_s]

creates FOLDER/masters, converts it with `bitnet convert`, prints wall time, processor time and peak memory of the
command, and removes both models again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from bitnet_core.formats.hf.names import stored
from bitnet_core.formats.hf.safetensors_writer import TensorHeader, write_safetensors
from bitnet_core.formats.names import matrices, tables, vectors
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.tokenizer.export import folder_files

CONFIG = SHAPES["2b4t"]


def make_masters(folder: Path) -> None:
    """Write a folder in the form of microsoft/bitnet-b1.58-2B-4T-bf16; normal weights of standard deviation 0.02."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(1)
    noise = (draw.standard_normal(1 << 25).astype(np.float32) * 0.02).view(np.uint32) >> 16
    block = noise.astype("<u2")
    shapes: dict[str, tuple[int, ...]] = {**tables(CONFIG), **matrices(CONFIG)}
    shapes |= {name: (n,) for name, n in vectors(CONFIG).items()}
    declared = [TensorHeader(stored(name), "BF16", shape) for name, shape in shapes.items()]

    def chunks(count: int) -> list[np.ndarray]:
        return [block[: min(count - at, block.size)] for at in range(0, count, block.size)]

    data = ((tensor.name, chunks(tensor.nbytes // 2)) for tensor in declared)
    write_safetensors(folder / "model.safetensors", declared, data)
    for name, text in folder_files(SyntheticSource("2b4t").tokenizer, CONFIG.context).items():
        (folder / name).write_text(text, encoding="utf-8")
    values = {
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
        "hidden_size": CONFIG.hidden,
        "intermediate_size": CONFIG.ffn,
        "num_hidden_layers": CONFIG.n_layers,
        "num_attention_heads": CONFIG.n_heads,
        "num_key_value_heads": CONFIG.n_kv_heads,
        "vocab_size": CONFIG.vocab,
        "max_position_embeddings": CONFIG.context,
        "rms_norm_eps": CONFIG.norm_eps,
        "rope_theta": CONFIG.rope_theta,
        "hidden_act": "relu2",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "online",
        },
    }
    (folder / "config.json").write_text(json.dumps(values))


def main() -> None:
    """Create the folder, convert it, print the figures, and remove both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", default="i2_s")
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    masters, result = options.folder / "masters", options.folder / f"converted-{options.to}"
    try:
        make_masters(masters)
        size = sum(file.stat().st_size for file in masters.iterdir())
        command = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()", "convert", str(masters)]
        command += [str(result), "--to", options.to, *(["--verify"] if options.verify else [])]
        started = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{size / 1e9:.2f} GB -> {options.to}: {seconds:.1f} s wall, {used.ru_utime + used.ru_stime:.1f} s "
            f"processor, peak memory {used.ru_maxrss / 1024:.0f} MiB, load {os.getloadavg()[0]:.1f}"
        )
    finally:
        for path in (masters, result):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
