"""`bitnet serve` under load: streaming clients through `bitnet bench --server`, then clients that leave at random.

    python benchmarks/server.py -d cpu --clients 16                       # the shipped model
    python benchmarks/server.py -m 2b4t.gguf -d cuda --clients 1 64 -p 128 -n 128
    python benchmarks/server.py -d cpu --clients 16 --soak 120            # random cancels, memory and descriptors

Prints the figures of each level beside `bitnet bench` of the same build, or, with --soak, how memory and descriptors
fare while clients leave at random.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from urllib.parse import urlsplit

import psutil
from bitnet_core.measure.server import measure_server

COMMAND = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()"]


def model_options(args: argparse.Namespace) -> list[str]:
    return [*(["-m", args.model] if args.model else []), "-d", args.device]


def direct(args: argparse.Namespace, sequences: int) -> float:
    """Tokens a second of `bitnet bench` without a server."""
    sizes = ["-p", str(args.prompt), "-n", str(args.tokens), "-s", str(sequences), "--repeat", str(args.repeat)]
    done = subprocess.run([*COMMAND, "bench", *model_options(args), *sizes, "--json"], capture_output=True, check=True)
    return float(json.loads(done.stdout)["decode_speed"])


def figure(url: str, name: str) -> float:
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"bitnet:{name}"))


async def leaver(url: str, end: float, seed: int, tokens: int, counts: dict[str, int]) -> None:
    """Ask, and half of the time leave after a random while."""
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
    parser.add_argument("-d", "--device", default="auto")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("-p", "--prompt", type=int, default=128, help="words of a prompt")
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--soak", type=float, default=0, help="seconds of clients that leave at random")
    args = parser.parse_args()
    sequences = ["--max-sequences", str(max(args.clients))]
    serve = [*COMMAND, "serve", "--port", "0", *model_options(args), *sequences]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        process.stderr.readline()  # the model is there
        try:
            for clients in args.clients:
                if args.soak:
                    break
                measure_server(url, clients, clients, args.prompt, args.tokens)  # a warm-up
                runs = [measure_server(url, clients, clients, args.prompt, args.tokens) for _ in range(args.repeat)]
                documents = sorted((run.document() for run in runs), key=lambda d: d["tokens_per_second"])
                rate = statistics.median(d["tokens_per_second"] for d in documents)
                print(
                    f"{clients} clients: {rate:.1f} tokens/s (median of {args.repeat})", documents[len(documents) // 2]
                )
            if args.soak:
                asyncio.run(soak(url, psutil.Process(process.pid), args))
        finally:
            process.terminate()
    for clients in [] if args.soak else args.clients:
        print(f"bitnet bench -s {clients}: {direct(args, clients):.1f} tokens/s of decoding")


if __name__ == "__main__":
    main()
