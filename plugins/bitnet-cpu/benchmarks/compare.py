"""Decode and prefill beside llama-cpp-python (TQ2_0), in turns, so that a noisy machine is noisy for both.

    python model_files.py FOLDER
    python compare.py FOLDER [--peer-python PATH] [--rounds 5] [--kernels avx512vnni,avx2]

Every contender is a process that keeps its model loaded; in each round each of them decodes and prefills once. Medians
over the rounds are printed as Markdown. Both sides use two threads unless BITNET_NUM_THREADS says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

THREADS = os.environ.get("BITNET_NUM_THREADS", "2")
CONTEXT = 1024
Command = Callable[[int], float]


def tokens(count: int) -> list[int]:
    return [random.randrange(1000, 100000) for _ in range(count)]


def serve(load: Callable[[], tuple[Command, Command]]) -> None:
    """Answer commands from standard input: seconds per token of `decode N` and `prefill N`, memory of `rss 0`."""
    start = time.perf_counter()
    decode, prefill = load()
    answers: dict[str, Command] = {
        "decode": decode,
        "prefill": prefill,
        "rss": lambda _: float(psutil.Process().memory_info().rss),
    }
    print(json.dumps(time.perf_counter() - start), flush=True)
    for line in sys.stdin:
        name, count = line.split()
        print(json.dumps(answers[name](int(count))), flush=True)


def bitnet(path: str) -> tuple[Command, Command]:
    import bitnet_core

    model = bitnet_core.load(path, "cpu", context=CONTEXT, layout="A")

    def decode(count: int) -> float:
        result = model.generate(tokens(8), max_tokens=count + 1)
        return result.decode_seconds / (len(result.tokens) - 1)

    def prefill(count: int) -> float:
        return model.generate(tokens(count), max_tokens=1).prefill_seconds / count

    return decode, prefill


def llama(path: str) -> tuple[Command, Command]:
    from llama_cpp import Llama

    model = Llama(path, n_ctx=CONTEXT, n_threads=int(THREADS), n_threads_batch=int(THREADS), n_batch=512, verbose=False)

    def timed(run: Callable[[], None]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def decode(count: int) -> float:
        model.reset()
        model.eval(tokens(8))
        return timed(lambda: [model.eval(tokens(1)) for _ in range(count)] and None) / count

    def prefill(count: int) -> float:
        model.reset()
        return timed(lambda: model.eval(tokens(count))) / count

    return decode, prefill


@dataclass
class Contender:
    """A process with a loaded model."""

    name: str
    process: subprocess.Popen[str]
    load: float = 0
    speeds: dict[str, list[float]] = field(default_factory=lambda: {"decode": [], "prefill": []})

    def ask(self, command: str, count: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command} {count}\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))

    def median(self, what: str) -> float:
        return statistics.median(self.speeds[what]) if self.speeds[what] else float("nan")


def start(name: str, python: str, side: str, path: Path, environment: dict[str, str]) -> Contender:
    variables = {**os.environ, "BITNET_NUM_THREADS": THREADS, **environment}
    process = subprocess.Popen(
        [python, __file__, "--serve", side, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    )
    contender = Contender(name, process)
    assert process.stdout is not None
    contender.load = float(json.loads(process.stdout.readline()))
    return contender


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has llama_cpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8, help="decoded per round")
    parser.add_argument("--prompt", type=int, default=512, help="0 leaves prefill out")
    parser.add_argument("--kernels", default="avx2")
    options = parser.parse_args()
    files = {head: options.folder / f"2b4t-i2s-{head}.gguf" for head in ("f16", "q6k")}
    contenders = []
    for kernel in options.kernels.split(","):
        for small in ("0", "1"):
            name = f"bitnet {kernel}, {'exact small head' if small == '1' else 'f16 head'}"
            environment = {"BITNET_CPU_KERNEL": kernel, "BITNET_CPU_SMALL_HEAD": small}
            contenders.append(start(name, sys.executable, "bitnet", files["f16"], environment))
    peers = {}
    for head in ("f16", "q6k"):
        path = options.folder / f"2b4t-tq20-{head}.gguf"
        peers[head] = start(f"llama.cpp TQ2_0, {head} head", options.peer_python, "llama", path, {})
        contenders.append(peers[head])
    for contender in contenders:
        contender.ask("decode", 2)
    for _ in range(options.rounds):
        for contender in contenders:
            contender.speeds["decode"].append(1 / contender.ask("decode", options.tokens))
    for _ in range((options.rounds + 1) // 2 if options.prompt else 0):
        for contender in contenders:
            if "small" not in contender.name and "q6k" not in contender.name:
                contender.speeds["prefill"].append(1 / contender.ask("prefill", options.prompt))
    print(
        f"| | decode tokens/s | / f16 peer | / q6_K peer | prefill {options.prompt} | / peer | load s | resident MB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for contender in contenders:
        decode, prefill = contender.median("decode"), contender.median("prefill")
        ratios = [decode / peers[head].median("decode") for head in ("f16", "q6k")]
        print(
            f"| {contender.name} | {decode:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} | {prefill:.1f} "
            f"| {prefill / peers['f16'].median('prefill'):.2f} | {contender.load:.2f} "
            f"| {contender.ask('rss', 0) / 1e6:.0f} |"
        )
        contender.process.terminate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(lambda: {"bitnet": bitnet, "llama": llama}[sys.argv[2]](sys.argv[3]))
    else:
        main()
