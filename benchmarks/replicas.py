"""Measure one `bitnet serve` on several devices against the same server on each of them alone.

    python benchmarks/replicas.py -d numpy cpu --clients 4                              # the shipped model
    python benchmarks/replicas.py --synthetic bonsai-8b -d cuda:0 cuda:1 --clients 64   # two GPUs
    python benchmarks/replicas.py --synthetic 2b4t -d cuda vulkan cpu --clients 64 8 1  # one GPU by two APIs, and CPU

Each device alone has its number of streaming clients (one number counts for all), all devices together the sum. Every
request has a prompt of its own. If each client sends one request, a device that takes those of another serves two
waves; --requests 4 measures a steady load. Prints tokens of answers a second in the time of prompts and answers, the
requests by device, and last the ratio to the first device alone, the share of the sum of all, and the share of the sum
of the processors, each with its fastest device: a card under two APIs, and all devices that run on the CPU, share one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from typing import Any

from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure.replicas import possible_sum, processor_of
from bitnet_core.measure.server import measure_server
from bitnet_hal.discovery.request import parse_request
from bitnet_hal.discovery.selection import devices
from server import served, warm_up, words_for

_prompts = count()


def measure(url: str, clients: int, words: int, tokens: int, first: int, requests: int = 1) -> dict[str, Any]:
    """Return the figures of clients that each send `requests` requests, one after the other."""
    return measure_server(url, clients, requests * clients, words, tokens, first=first).document()


def props(url: str) -> Any:
    return json.loads(urllib.request.urlopen(url + "/props").read())


def wait_for_devices(url: str) -> list[dict[str, Any]]:
    """Wait until every device of a server takes requests; return their states."""
    while True:
        states: list[dict[str, Any]] = props(url)["devices"]
        if all(one["state"] == "ready" for one in states):
            return states
        if any(one["state"] == "away" for one in states):
            raise SystemExit(f"a device is not used: {states}")
        time.sleep(0.1)


def processor(name: str) -> str:
    """Return the processor of a device by its request, as in "cuda" or "cuda:1"."""
    request = parse_request(name)
    return next(processor_of(info) for info in devices({request.name}) if request.index in (None, info.index))


def rate(args: argparse.Namespace, device: str, groups: list[int]) -> float:
    """Return the tokens a second of a server on `device`, a list perhaps, as the median of the repetitions.

    groups: numbers of clients, each group in a process of its own.
    """
    args.clients = [max(groups)]  # --max-sequences, of each device
    with served(args, [device]) as ((url,), _), ProcessPoolExecutor(len(groups), get_context("spawn")) as pool:
        wait_for_devices(url)
        words = words_for(url, args.prompt)

        def wave() -> list[dict[str, Any]]:
            calls = [
                pool.submit(measure, url, n, words, args.tokens, 10_000 * next(_prompts), args.requests) for n in groups
            ]
            return [call.result() for call in calls]

        warm_up(wave)
        before = {one["device"]: one["generated_tokens"] for one in props(url)["devices"]}
        waves = [wave() for _ in range(args.repeat)]
        made = {one["device"]: one["generated_tokens"] - before[one["device"]] for one in props(url)["devices"]}
    found = statistics.median(sum(document["tokens_per_second"] for document in documents) for documents in waves)
    errors = sum(document["errors"] for documents in waves for document in documents)
    shares = ", ".join(f"{name} {tokens / sum(made.values()):.0%}" for name, tokens in made.items())
    print(
        f"{device}: {sum(groups)} clients, {found:.1f} tokens/s ({shares} of the tokens), {errors} errors", flush=True
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model")
    parser.add_argument("--synthetic", choices=sorted(SHAPES), help="random weights of this shape")
    parser.add_argument("-d", "--device", nargs="+", required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[16], help="of each device")
    parser.add_argument("-p", "--prompt", type=int, default=128, help="approximate tokens of a prompt")
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=1, help="of each client, one after the other")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    clients = args.clients * len(args.device) if len(args.clients) == 1 else args.clients
    if len(clients) != len(args.device):
        parser.error("--clients takes one number, or one for each device")
    if args.synthetic:
        args.model = f"synthetic:{args.synthetic}"
    alone = [rate(args, device, [number]) for device, number in zip(args.device, clients, strict=True)]
    together = rate(args, ",".join(args.device), clients)
    possible = possible_sum([processor(device) for device in args.device], alone)
    ratio, share = together / alone[0], together / sum(alone)
    print(f"{ratio:.2f} times {args.device[0]}, {share:.0%} of the sum of the devices alone")
    print(f"{together / possible:.0%} of the sum of the processors, each with its fastest device alone")


if __name__ == "__main__":
    main()
