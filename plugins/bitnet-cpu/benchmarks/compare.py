"""Compare decode and prefill with llama-cpp-python (TQ2_0, Q2_0), alternating so that noise affects both.

    python model_files.py FOLDER
    python compare.py FOLDER [--shape bonsai-1.7b] [--peer-python PATH] [--rounds 5] [--kernels avx512vnni,avx2]
                      [--threads 16,8]
    python random_gguf.py maple-20b FOLDER --layers 8 --head f16     # and q6_k; or bonsai-27b
    python compare.py FOLDER --shape maple-20b --layers 8

Every contender is a process with a loaded model. In each round each of them decodes once, and one more process measures
the memory bandwidth of the same number of threads. Then each of them prefills a prompt. Medians over the rounds are
printed as Markdown, one table per number of threads, which is the same for all contenders.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import psutil

CONTEXT = 1024
CLOCK = "BITNET_COMPARE_CLOCK"
BONSAI = "bonsai-1.7b-q20.gguf"
HEAD_VALUES = 128256 * 2560
MAPLE_HEAD_VALUES = 151936 * 2048
MAPLE_EXPERT_BYTES = 3 * 512 * 2048 // 256 * 66
MAPLE_EXPERTS, MAPLE_USED = 256, 8
BONSAI_27B_HEAD_BYTES = 248320 * 5120 // 64 * 18
READ_BYTES = 1 << 30
Command = Callable[[int], float]


def file_name(shape: str, layers: int, head: str = "") -> str:
    """Return the name of a file that random_gguf.py writes; `head` is that of maple-20b."""
    kind = f"tq20-{head}" if shape == "maple-20b" else "q20"
    return f"{shape}-{layers}-layers-{kind}.gguf".replace("_", "")


def tokens(count: int) -> list[int]:
    return [random.randrange(1000, 100000) for _ in range(count)]


def serve(load: Callable[[str, int], dict[str, Command]], path: str, threads: int) -> None:
    """Answer commands from standard input.

    `decode N` and `prefill N`: seconds per token. `rss 0`: bytes. `read N`: bytes per second.
    """
    start = time.perf_counter()
    answers = {**load(path, threads), "rss": lambda _: float(psutil.Process().memory_info().rss)}
    print(json.dumps(time.perf_counter() - start), flush=True)
    for line in sys.stdin:
        name, count = line.split()
        print(json.dumps(answers[name](int(count))), flush=True)


def clock() -> float:
    """Return the seconds of the wall clock or of the process's processor time."""
    return time.process_time() if os.environ.get(CLOCK) == "processor" else time.perf_counter()


def timed(run: Callable[[], object]) -> float:
    start = clock()
    run()
    return clock() - start


def memory(path: str, threads: int) -> dict[str, Command]:
    """Return the command that measures bandwidth: the maximum, by numpy, of bytes that no cache holds."""
    parts = np.array_split(np.ones(READ_BYTES, np.uint8), threads)
    pool = ThreadPoolExecutor(threads)  # numpy lets other threads run meanwhile
    return {"read": lambda count: READ_BYTES / min(timed(lambda: list(pool.map(np.max, parts))) for _ in range(count))}


def bitnet(path: str, threads: int, lm_head_int8: Literal["on", "off"] = "off") -> dict[str, Command]:
    import bitnet_core

    os.environ["BITNET_NUM_THREADS"] = str(threads)
    model = bitnet_core.load(
        path,
        "cpu",
        context=CONTEXT,
        layout="A" if "i2s" in path else None,
        lm_head_int8=lm_head_int8,
        speculate="off",
    )
    if model.device.info.backend != "cpu":
        sys.exit("bitnet-cpu is not installed: 'cpu' is the numpy device")

    def decode(count: int) -> float:
        request = model.engine.add_request(tokens(8), max_tokens=count + 1)
        while not request.generated_tokens:
            model.engine.step()
        before = request.generated_tokens
        began = clock()
        while request.finish_reason is None:
            model.engine.step()
        return (clock() - began) / (request.generated_tokens - before)

    def prefill(count: int) -> float:
        return timed(lambda: model.generate(tokens(count), max_tokens=1)) / count

    return {"decode": decode, "prefill": prefill}


def llama(path: str, threads: int) -> dict[str, Command]:
    from llama_cpp import Llama

    model = Llama(path, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)

    def decode(count: int) -> float:
        model.reset()
        model.eval(tokens(8))
        return timed(lambda: [model.eval(tokens(1)) for _ in range(count)] and None) / count

    def prefill(count: int) -> float:
        model.reset()
        return timed(lambda: model.eval(tokens(count))) / count

    return {"decode": decode, "prefill": prefill}


@dataclass
class Contender:
    """A process with a loaded model, and its results: tokens or bytes per second."""

    name: str
    process: subprocess.Popen[str]
    file: int = 0  # bytes that one token reads: the whole file, if the head is the embedding
    load: float = 0
    speeds: dict[str, list[float]] = field(default_factory=lambda: {"decode": [], "prefill": [], "read": []})

    def answer(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended")
        return float(json.loads(line))

    def ask(self, command: str, count: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {count}\n")
        self.process.stdin.flush()
        return self.answer()

    def median(self, what: str) -> float:
        return statistics.median(self.speeds[what]) if self.speeds[what] else float("nan")


def start(name: str, python: str, side: str, path: Path, threads: int, environment: dict[str, str]) -> Contender:
    process = subprocess.Popen(
        [python, __file__, "--serve", side, str(path), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    contender = Contender(name, process, path.stat().st_size)
    contender.load = contender.answer()
    return contender


def two_b4t(options: argparse.Namespace, threads: int) -> tuple[list[Contender], list[Contender]]:
    """Return our contenders, with the f16 head and with the int8 head, and the peer's with either head."""
    ours = []
    for kernel in options.kernels.split(","):
        environment = {"BITNET_CPU_KERNEL": kernel}
        path = options.folder / "2b4t-i2s-f16.gguf"
        ours.append(start(f"bitnet {kernel}, f16 head", sys.executable, "bitnet", path, threads, environment))
        name = f"bitnet {kernel}, exact small head"
        ours.append(start(name, sys.executable, "bitnet-small", path, threads, environment))
        ours[-1].file -= HEAD_VALUES
    peers = []
    for head in ("f16", "q6k"):
        path = options.folder / f"2b4t-tq20-{head}.gguf"
        peers.append(start(f"llama.cpp TQ2_0, {head} head", options.peer_python, "llama", path, threads, {}))
    return ours, peers


def bonsai(options: argparse.Namespace, threads: int) -> tuple[list[Contender], list[Contender]]:
    """Return our contenders and the peer's, with the same file."""
    small = options.shape == "bonsai-1.7b"
    path = options.folder / (BONSAI if small else file_name(options.shape, options.layers))
    ours = [
        start(f"bitnet {kernel}", sys.executable, "bitnet", path, threads, {"BITNET_CPU_KERNEL": kernel})
        for kernel in options.kernels.split(",")
    ]
    peers = [start("llama.cpp Q2_0", options.peer_python, "llama", path, threads, {})]
    for contender in (*ours, *peers):
        contender.file -= 0 if small else BONSAI_27B_HEAD_BYTES  # a token does not read the embedding
    return ours, peers


def maple(options: argparse.Namespace, threads: int) -> tuple[list[Contender], list[Contender]]:
    """Return our contenders and the peer's, with the same files: an f16 and a q6_K head."""
    f16, q6k = (options.folder / file_name(options.shape, options.layers, head) for head in ("f16", "q6_k"))
    ours = []
    for kernel in options.kernels.split(","):
        environment = {"BITNET_CPU_KERNEL": kernel}
        ours += [
            start(f"bitnet {kernel}, f16 head", sys.executable, "bitnet", f16, threads, environment),
            start(f"bitnet {kernel}, exact small head", sys.executable, "bitnet-small", f16, threads, environment),
            start(f"bitnet {kernel}, q6k head", sys.executable, "bitnet", q6k, threads, environment),
        ]
    peers = [
        start("llama.cpp TQ2_0, f16 head", options.peer_python, "llama", f16, threads, {}),
        start("llama.cpp TQ2_0, q6k head", options.peer_python, "llama", q6k, threads, {}),
    ]
    for contender in (*ours, *peers):
        table = MAPLE_HEAD_VALUES * 210 // 256 if contender.name.endswith("q6k head") else MAPLE_HEAD_VALUES * 2
        contender.file -= table + options.layers * (MAPLE_EXPERTS - MAPLE_USED) * MAPLE_EXPERT_BYTES
        contender.file -= MAPLE_HEAD_VALUES if contender.name.endswith("small head") else 0
    return ours, peers


def compare(options: argparse.Namespace, threads: int) -> None:
    """Measure all contenders and print one table."""
    ours, peers = CONTENDERS[options.shape](options, threads)
    contenders = [*ours, *peers]
    bandwidth = start("memory", sys.executable, "memory", options.folder, threads, {})
    prompted = [
        contender
        for contender in contenders
        if options.prompt and not contender.name.endswith(("small head", "q6k head"))
    ]
    memory = {}
    for contender in contenders:  # a warm-up; only its memory counts
        if contender in prompted:
            contender.ask("prefill", options.prompt)
        contender.ask("decode", 2)
        memory[contender.name] = contender.ask("rss", 0) / 1e6
    for _ in range(options.rounds):
        for contender in contenders:
            contender.speeds["decode"].append(1 / contender.ask("decode", options.tokens))
        bandwidth.speeds["read"].append(bandwidth.ask("read", 2))
    for _ in range(options.rounds):
        for contender in prompted:
            contender.speeds["prefill"].append(1 / contender.ask("prefill", options.prompt))
    read = bandwidth.median("read")
    print(f"\n{threads} threads, which read {read / 1e9:.1f} GB/s (best {max(bandwidth.speeds['read']) / 1e9:.1f})\n")
    ratios = [f"/ {peer.name}" for peer in peers]
    titles = ["", "decode tokens/s", "of the bandwidth", *ratios, f"prefill {options.prompt}", "/ peer", "load s"]
    print("|", " | ".join([*titles, "resident MB"]), "|")
    print("|" + "---|" * (len(titles) + 1))
    for contender in contenders:
        decode, prefill = contender.median("decode"), contender.median("prefill")
        cells = [contender.name, f"{decode:.2f}", f"{decode * contender.file / read:.0%}"]
        cells += [f"{decode / peer.median('decode'):.2f}" for peer in peers]
        cells += [f"{prefill:.1f}", f"{prefill / peers[0].median('prefill'):.2f}", f"{contender.load:.2f}"]
        print("|", " | ".join([*cells, f"{memory[contender.name]:.0f}"]), "|", flush=True)
    for contender in (*contenders, bandwidth):
        contender.process.terminate()


CONTENDERS = {"2b4t": two_b4t, "bonsai-1.7b": bonsai, "bonsai-27b": bonsai, "maple-20b": maple}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=CONTENDERS, default="2b4t")
    parser.add_argument("--layers", type=int, default=8, help="layers of the file of maple-20b or bonsai-27b")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has llama_cpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8, help="decoded per round")
    parser.add_argument("--prompt", type=int, default=512, help="0 leaves prefill out")
    parser.add_argument("--kernels", default="avx2")
    parser.add_argument("--threads", default="2", help="one table for each number")
    parser.add_argument(
        "--clock", choices=("wall", "processor"), default="wall", help="processor: for one thread on a busy machine"
    )
    options = parser.parse_args()
    os.environ[CLOCK] = options.clock
    for threads in options.threads.split(","):
        compare(options, int(threads))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sides = {"bitnet": bitnet, "bitnet-small": partial(bitnet, lm_head_int8="on"), "llama": llama, "memory": memory}
        serve(sides[sys.argv[2]], sys.argv[3], int(sys.argv[4]))
    else:
        main()
