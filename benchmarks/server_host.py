"""Measure the host's work of `bitnet serve` beside simulated GPUs that take a fixed time and compute nothing.

    python benchmarks/server_host.py --clients 64
    python benchmarks/server_host.py --clients 64 --devices 2

A device (timed_device.py) takes the time of an H200 with 2B-4T, the model is tiny but for its vocabulary, and the
clients of each device are those of `bitnet bench --server`, in a process of their own. Prints the processor time of the
server's first process, of its other HTTP processes and of the devices' processes for each token of an answer, and the
share of `bitnet bench -s` on the same devices, counted alike. The share says how much of a GPU's time the host would
waste, not how fast a GPU is; it means nothing on a machine with fewer processor cores than processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from make_gguf import write
from replicas import wait_for_devices
from server import direct, measure, served, warm_up, words_for

_prompts = count()

_ENTRY = "[bitnet.backends]\ntimed = timed_device\n"
_METADATA = "Metadata-Version: 2.1\nName: bitnet-timed\nVersion: 1\n"
_SHAPE = "server-host"


def install(folder: Path) -> None:
    """Let child processes find the simulated device."""
    described = folder / "timed-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(_METADATA)
    (described / "entry_points.txt").write_text(_ENTRY)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path(__file__).parent)])


def seconds_spent(process: int) -> dict[str, float]:
    """Return the processor time of the server's event loop, of its other threads, of its other HTTP processes, and of
    the processes of the devices (Linux)."""
    threads: dict[int, float] = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        threads[int(thread.name)] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    loop = threads.pop(process)
    spent = {"event loop": loop, "other threads": sum(threads.values()), "HTTP processes": 0.0, "devices": 0.0}
    for child in psutil.Process(process).children():
        times = child.cpu_times()
        kind = "HTTP processes" if "http_process" in str(child.cmdline()) else "devices"
        spent[kind] += times.user + times.system
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[64])
    parser.add_argument("--devices", type=int, default=1, help="1 to 8, each with its clients")
    parser.add_argument("-p", "--prompt", type=int, default=128)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    args.device, args.synthetic = [f"timed:{index}" for index in range(args.devices)], _SHAPE
    SHAPES[_SHAPE] = replace(SHAPES["2b4t"], hidden=256, ffn=640, n_heads=4, n_kv_heads=2, head_dim=64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder)
        args.model = str(folder / "model.gguf")
        write(SyntheticSource(_SHAPE), Path(args.model))
        for clients in args.clients:
            report(args, clients)


def report(args: argparse.Namespace, clients: int) -> None:
    """Print the figures of a number of clients."""
    beside = direct(args, clients)
    with ExitStack() as stack:
        (url,), (process,) = stack.enter_context(served(args, [",".join(args.device)]))
        pool = stack.enter_context(ProcessPoolExecutor(args.devices, get_context("spawn")))  # the clients
        if args.devices > 1:
            wait_for_devices(url)
        words = words_for(url, args.prompt)
        runs: list[dict[str, Any]] = []
        times: list[dict[str, float]] = []

        def wave() -> list[dict[str, Any]]:
            firsts = [clients * next(_prompts) for _ in range(args.devices)]
            calls = [pool.submit(measure, url, clients, words, args.tokens, first) for first in firsts]
            return [call.result() for call in calls]

        warm_up(wave)
        for _ in range(args.repeat):
            before = seconds_spent(process)
            documents = wave()
            runs += [documents[0] | {"tokens_per_second": sum(one["tokens_per_second"] for one in documents)}]
            spent = {part: seconds - before[part] for part, seconds in seconds_spent(process).items()}
            tokens = sum(one["tokens"] for one in documents)
            times.append({part: 1e6 * seconds / tokens for part, seconds in spent.items()})
    rates = [document["tokens_per_second"] for document in runs]
    rate = statistics.median(rates)
    parts = {part: statistics.mean(one[part] for one in times) for part in times[0]}
    print(
        f"{args.devices} x {clients} clients: {rate:.0f} tokens/s ({min(rates):.0f} to {max(rates):.0f}), "
        f"{100 * rate / beside.whole / args.devices:.0f} % of {args.devices} x bitnet bench -s {clients} "
        f"({beside.whole:.0f}, decoding {beside.decode:.0f})"
    )
    print("  us of a token: " + ", ".join(f"{part} {spent:.1f}" for part, spent in parts.items()))
    print(f"  ms: first token {runs[-1]['ttft_ms']}, between chunks {runs[-1]['chunk_gap_ms']}", flush=True)


if __name__ == "__main__":
    main()
