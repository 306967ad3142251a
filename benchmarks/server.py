"""Measure `bitnet serve` under load: streaming clients through `bitnet bench --server`, then clients that disconnect at
random.

    python benchmarks/server.py -d cpu --clients 16                       # the shipped model
    python benchmarks/server.py --synthetic 2b4t -d cuda --clients 1 64   # every row for one GPU, about a minute
    python benchmarks/server.py --synthetic 2b4t -d cuda:0 cuda:1 --clients 64   # one process for each GPU
    python benchmarks/server.py -d cpu --clients 16 --soak 120            # random cancels, memory and descriptors

Prints the figures of each level beside `bitnet bench` of the same build: for both, the answers' tokens in the time of
prompts and answers together, and the rate within an answer beside decoding alone. With several devices each has a
server and `--clients` clients, and the sum is compared with one. With --soak it reports memory and descriptors while
clients disconnect at random.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from typing import Any
from urllib.parse import urlsplit

import psutil
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure.server import measure_server, prompt_of

START_SECONDS = 8.0
"""Minimum seconds of warm-up: a server of many clients starts HTTP processes meanwhile."""

_prompts = count()

COMMAND = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()"]


@dataclass(frozen=True)
class Direct:
    """Tokens a second of `bitnet bench` without a server. whole: answers' tokens in the time of prompts and answers."""

    decode: float
    whole: float


def model_options(args: argparse.Namespace, device: str) -> list[str]:
    return [*(["-m", args.model] if args.model else []), "-d", device]


def direct(args: argparse.Namespace, sequences: int) -> Direct:
    sizes = ["-p", str(args.prompt), "-n", str(args.tokens), "-s", str(sequences), "--repeat", str(args.repeat)]
    command = [*COMMAND, "bench", *model_options(args, args.device[0]), *sizes, "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    seconds = args.prompt / found["prefill_speed"] + args.tokens / found["decode_speed"]
    return Direct(float(found["decode_speed"]), args.tokens / seconds)


def words_for(url: str, tokens: int) -> int:
    """Return the number of words of a prompt of about `tokens` tokens."""
    body = json.dumps({"content": prompt_of(0, 256), "add_special": True}).encode()
    request = urllib.request.Request(url + "/tokenize", body, {"content-type": "application/json"})
    found = json.loads(urllib.request.urlopen(request).read())["tokens"]
    return max(1, round(256 * tokens / len(found)))


@contextmanager
def served(args: argparse.Namespace, devices: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Start a server for each device; yield their addresses, once the models are loaded, and their processes."""
    sequences = ["--port", "0", "--max-sequences", str(max(args.clients))]
    with ExitStack() as stack:
        processes = []
        for device in devices:
            command = [*COMMAND, "serve", *model_options(args, device), *sequences]
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            stack.callback(process.terminate)
            processes.append(process)
        urls = []
        for process in processes:
            assert process.stderr is not None
            urls.append(process.stderr.readline().split()[-1])
            print(process.stderr.readline().strip(), flush=True)  # the model is loaded
        yield urls, [process.pid for process in processes]


def measure(url: str, clients: int, words: int, tokens: int, first: int) -> dict[str, Any]:
    return measure_server(url, clients, clients, words, tokens, first=first).document()


def level(args: argparse.Namespace, urls: list[str], clients: int) -> tuple[float, dict[str, Any]]:
    """Return the tokens a second of all servers together, as the median of the repetitions, with the figures of one
    server.

    Each server's clients are a separate process.
    """
    words = words_for(urls[0], args.prompt)
    with ProcessPoolExecutor(len(urls), get_context("spawn")) as pool:

        def wave() -> tuple[float, dict[str, Any]]:
            first = next(_prompts) * clients  # prompts of their own: half of a known one would be in the prefix cache
            calls = [pool.submit(measure, url, clients, words, args.tokens, first) for url in urls]
            documents = [call.result() for call in calls]
            return sum(document["tokens_per_second"] for document in documents), documents[0]

        warm_up(wave)
        ordered = sorted((wave() for _ in range(args.repeat)), key=lambda pair: pair[0])
    return ordered[len(ordered) // 2]


def warm_up(wave: Callable[[], object]) -> None:
    """Send waves of requests for START_SECONDS."""
    end = time.monotonic() + START_SECONDS
    wave()
    while time.monotonic() < end:
        wave()


def compare(args: argparse.Namespace, clients: int, rate: float, document: dict[str, Any]) -> None:
    """Print one server's rate beside that of the same build without a server."""
    beside, own = direct(args, clients), 1e3 * clients / document["token_ms"]["p50"]
    print(
        f"{clients} clients: {rate:.1f} tokens/s, {100 * rate / beside.whole:.0f} % of what bitnet bench -s {clients} "
        f"makes of prompts and answers ({beside.whole:.1f})"
    )
    print(
        f"  within answers {own:.1f} tokens/s, {100 * own / beside.decode:.0f} % of its decoding ({beside.decode:.1f})"
    )
    print(
        f"  ms to the first token {document['ttft_ms']}, between tokens {document['token_ms']}, "
        f"between chunks {document['chunk_gap_ms']}"
    )
    print(f"  errors {document['errors']}", flush=True)


def figure(url: str, name: str) -> float:
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"bitnet:{name}"))


async def leaver(url: str, end: float, seed: int, tokens: int, counts: dict[str, int]) -> None:
    """Send requests, and disconnect from half of them after a random time."""
    rng, address = random.Random(seed), urlsplit(url)
    while time.monotonic() < end:
        words = " ".join(rng.choices(["cat", "dog", "sun", "tree"], k=rng.randint(1, 60)))
        fields = {
            "prompt": words,
            "max_tokens": tokens,
            "stream": rng.random() < 0.7,
            "temperature": rng.choice([0, 0.8]),
        }
        body = json.dumps(fields).encode()
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n".encode() + body)
        try:
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 2)
                counts["left"] += 1
            else:
                answer = await reader.read()
                counts["answered" if b" 200 OK" in answer[:20] and b'"error"' not in answer else "failed"] += 1
        finally:
            writer.close()


async def soak(url: str, process: psutil.Process, args: argparse.Namespace) -> None:
    counts = {"left": 0, "answered": 0, "failed": 0}
    end = time.monotonic() + args.soak
    tasks = [asyncio.create_task(leaver(url, end, seed, args.tokens, counts)) for seed in range(max(args.clients))]
    seen = []
    while time.monotonic() < end:
        await asyncio.sleep(args.soak / 12)
        seen.append((process.memory_info().rss >> 20, process.num_fds()))
    await asyncio.gather(*tasks)
    await asyncio.sleep(2)
    print(f"soak {args.soak} s: {counts}; memory MiB {[m for m, _ in seen]}, descriptors {[f for _, f in seen]}")
    idle = {name: figure(url, name) for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")}
    print(f"afterwards: {idle}, descriptors {process.num_fds()}")
    if counts["failed"] or any(idle.values()):
        sys.exit("the soak failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model")
    parser.add_argument("--synthetic", choices=sorted(SHAPES), help="random weights of this shape")
    parser.add_argument("-d", "--device", nargs="+", default=["auto"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("-p", "--prompt", type=int, default=128, help="approximate tokens of a prompt")
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--soak", type=float, default=0, help="seconds of clients that disconnect at random")
    args = parser.parse_args()
    if args.synthetic:
        args.model = f"synthetic:{args.synthetic}"
    if args.soak:
        with served(args, args.device[:1]) as (urls, processes):
            asyncio.run(soak(urls[0], psutil.Process(processes[0]), args))
        return
    with served(args, args.device[:1]) as (urls, _):
        one = {clients: level(args, urls, clients) for clients in args.clients}
    for clients, (rate, document) in one.items():
        compare(args, clients, rate, document)
    if len(args.device) > 1:
        with served(args, args.device) as (urls, _):
            for clients in args.clients:
                rate, _ = level(args, urls, clients)
                share = rate / one[clients][0]
                print(f"{len(urls)} devices, {clients} clients each: {rate:.1f} tokens/s, {share:.2f} times one")


if __name__ == "__main__":
    main()
