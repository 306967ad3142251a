"""Mutate files of every kind for a while: each must be read, or rejected with one of our errors, in bounded time.

    nox -s fuzz -- --seconds 60 --seed 1

A case with any other end is kept in build/fuzz and named, and the exit code is 1. The same seed yields the same cases
in the same order.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.names import matrices, tables, vectors
from bitnet_core.formats.open import open_model
from bitnet_core.receipt_checks import verify_receipt
from bitnet_core.tokenizer import load_tokenizer
from bitnet_core.tokenizer.chat import BITNET_TEMPLATE
from bitnet_core.tokenizer.template_process import SECONDS, TemplateProcess
from bitnet_hal.errors import BitnetError

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_values import value_targets

GOLDEN = Path(__file__).parents[2] / "core" / "tests" / "golden" / "qwen3"
KEPT = Path("build") / "fuzz"
SLOWEST = 10.0
"""Limit of one case, in seconds of processor time."""
EDGES = (0, 1, 2, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
SCALARS: tuple[Any, ...] = (True, -1, 0, 1 << 40, 0.5, float("inf"), "", "x")
VALUES: tuple[Any, ...] = (*SCALARS, None, "\ud800", "a\udfffb", [], [1], ["x"], {}, {"a": 1})
ARRAYS: tuple[Any, ...] = (
    *(["a", "b"], ["x"], np.array([1, 2], np.int32), np.zeros(0, np.int32)),
    *(np.array([0.5, np.nan], np.float32), np.array([True, False])),
)
TOKENS = (
    b"{{", b"}}", b"{%", b"%}", b"for i in range(99999)", b"endfor", b"|join(", b"|replace('','xxxx')", b"~", b"//",
    b"if", b"endif", b"set x =", b"messages", b".split(", b"[::-1]", b'"', b"null", b"-1", b"1e999", b"[[", b"{}",
    b"\\u0000", b"\xff\xfe", b"(a+)+", b"\xed\xa0\x80", b'{"Regex":""}', b'"content":"xxxxxxxx"', b"Prepend",
)  # fmt: skip


def mutated(draw: random.Random, content: bytes) -> bytes:
    """Apply a few changes: bits, whole numbers, words, repetitions, cuts; most of them near the start, in the
    headers."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        near = min(len(data), draw.choice((64, 4096, len(data) or 1)))
        at = draw.randrange(near + 1)
        kind = draw.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            size = draw.choice((4, 8))
            data[at : at + size] = (draw.choice(EDGES) & (256**size - 1)).to_bytes(size, "little")
        elif kind == 2:
            data[at:at] = draw.choice(TOKENS)
        elif kind == 3:
            data[at : at + draw.randrange(1, 200)] = b""
        elif kind == 4:
            data[at:at] = bytes(data[at : at + draw.randrange(1, 64)]) * draw.choice((1, 9, 400))
        else:
            other = draw.randrange(near + 1)
            data[at : at + 32] = data[other : other + 32]
    return bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.05 else data)


def read_model(path: Path) -> None:
    """Read all parts of a model file or folder."""
    source = open_model(path)
    try:
        for name in (*matrices(source.config), *tables(source.config)):
            if source.config.ternary_tables or name in matrices(source.config):
                source.ternary(name)
            else:
                source.dense(name)
        for name in vectors(source.config):
            source.vector(name)
        tokenizer = load_tokenizer(source.tokenizer)
        tokenizer.decode(tokenizer.encode("Hello wörld  <|im_end|> 123\n", add_bos=True))
        assert source.format
        assert source.metadata
    finally:
        source.close()


def of_file(path: Path) -> Callable[[random.Random, Path], Path]:
    content = path.read_bytes()

    def case(draw: random.Random, folder: Path) -> Path:
        (folder / path.name).write_bytes(mutated(draw, content))
        return folder / path.name

    return case


def of_folder(path: Path) -> Callable[[random.Random, Path], Path]:
    parts = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}

    def case(draw: random.Random, folder: Path) -> Path:
        chosen = draw.choice(sorted(parts))
        for name, content in parts.items():
            (folder / name).write_bytes(mutated(draw, content) if name == chosen else content)
        return folder

    return case


def of_keys(path: Path) -> Callable[[random.Random, Path], Path]:
    """Write the GGUF file again with values of other types in a few of its keys."""
    file = GGUFFile(path)

    def case(draw: random.Random, folder: Path) -> Path:
        keys = dict(file.metadata)
        for key in draw.sample(sorted(keys), draw.choice((1, 1, 2))):
            keys[key] = draw.choice((*SCALARS, *ARRAYS))
        with GGUFWriter(folder / path.name) as writer:
            for key, value in keys.items():
                writer.metadata(key, value)
            for tensor in file.tensors.values():
                writer.tensor(tensor.name, tensor.shape, tensor.type.name, tensor.nbytes)
            for tensor in file.tensors.values():
                writer.write(tensor.name, [file.data(tensor)])
        return folder / path.name

    return case


def of_values(path: Path) -> Callable[[random.Random, Path], Path]:
    """Write the folder again with values of other types in one of its JSON files."""
    parts = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}

    def case(draw: random.Random, folder: Path) -> Path:
        for name, content in parts.items():
            (folder / name).write_bytes(content)
        name = draw.choice(sorted(name for name in parts if name.endswith(".json")))
        document = json.loads(parts[name])
        node = document
        while isinstance(node, dict | list) and node:
            key = draw.choice(sorted(node)) if isinstance(node, dict) else draw.randrange(len(node))
            if not isinstance(node[key], dict | list) or not node[key] or draw.random() < 0.4:
                node[key] = draw.choice(VALUES)
                break
            node = node[key]
        (folder / name).write_text(json.dumps(document))
        return folder

    return case


def of_text(content: bytes, name: str) -> Callable[[random.Random, Path], Path]:
    def case(draw: random.Random, folder: Path) -> Path:
        (folder / name).write_bytes(mutated(draw, content))
        return folder / name

    return case


def render(path: Path) -> None:
    """Render a chat template; its process has a time limit of its own."""
    template = TemplateProcess(path.read_bytes().decode("utf-8", "surrogateescape"))
    try:
        template.parse()
        template.render({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True})
    finally:
        template.close()


def targets() -> dict[str, tuple[Callable[[random.Random, Path], Path], Callable[[Path], object], int]]:
    """Return by name: the maker of cases, the reader, and the cases per round."""
    found: dict[str, tuple[Callable[[random.Random, Path], Path], Callable[[Path], object], int]] = {}
    for path in sorted(GOLDEN.glob("*/*.gguf")):
        found[f"{path.parent.name}/{path.name}"] = of_file(path), read_model, 8
        found[f"{path.parent.name}/{path.name}, types"] = of_keys(path), read_model, 4
    for path in sorted(GOLDEN.glob("*/*/config.json")):
        found[f"{path.parent.parent.name}/{path.parent.name}"] = of_folder(path.parent), read_model, 4
        found[f"{path.parent.parent.name}/{path.parent.name}, types"] = of_values(path.parent), read_model, 4
    shipped = (Path(str(files("bitnet_core"))) / "data" / "stories.gguf").read_bytes()
    found["stories.gguf"] = of_text(shipped, "stories.gguf"), read_model, 1
    found["template"] = of_text(BITNET_TEMPLATE.encode(), "template"), render, 2
    receipt = json.dumps(
        {"schema_version": 1, "time": "", "model": {}, "kernels": {}, "tokens": {"prompt": 1}}
    ).encode()
    found["receipt"] = of_text(receipt, "receipt"), verify_receipt, 8
    return found | value_targets()


def rounds() -> Iterator[tuple[str, Callable[[random.Random, Path], Path], Callable[[Path], object]]]:
    table = targets()
    while True:
        for name, (make, read, times) in table.items():
            for _ in range(times):
                yield name, make, read


def run(seconds: float, seed: int) -> int:
    """Run cases for `seconds` and return the number of violations."""
    draw, outcomes, wrong = random.Random(seed), Counter[str](), 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, make, read) in enumerate(rounds()):
            if time.monotonic() > end:
                break
            folder = Path(scratch) / str(number)
            folder.mkdir()
            path = make(draw, folder)
            problem = attempt(read, path, outcomes)
            if problem:
                wrong += 1
                KEPT.mkdir(parents=True, exist_ok=True)
                kept = KEPT / f"{seed}-{number}"
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                print(f"{name}, case {number} of seed {seed}, kept in {kept}: {problem}", flush=True)
            shutil.rmtree(folder)
    print(f"{sum(outcomes.values())} cases in {seconds:.0f} s, seed {seed}: {dict(outcomes)}, {wrong} wrong")
    return wrong


def attempt(read: Callable[[Path], object], path: Path, outcomes: Counter[str]) -> str:
    """Read a case and return its violation, "" if there is none."""
    began = time.process_time()
    try:
        read(path)
        outcomes["read"] += 1
    except BitnetError as error:
        outcomes[type(error).__name__] += 1
        if len(str(error)) > 1000 + 2 * len(str(path)):
            return f"a message of {len(str(error))} characters: {str(error)[:200]}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - this is what is looked for
        outcomes[type(error).__name__] += 1
        return f"{type(error).__name__}: {str(error)[:200]}"
    took = time.process_time() - began
    return f"{took:.1f} s of processor time" if took > SLOWEST + SECONDS else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(run(arguments.seconds, arguments.seed) > 0)


if __name__ == "__main__":
    main()
