"""Measure greedy decode steps of several requests at position 128, without the host's work between them.

    python benchmarks/decode_steps.py BACKEND SHAPE [--requests 1,4,8,32] [--without]

SHAPE: a synthetic model, with random weights. For each number of requests it prints the time of a step (the median of 5
times 20 replays of its recording), the part of it in which the host queues launches, the time of each kernel by the
device's clock, if it has one, and the first tokens of a text, which must not depend on the number of requests.
--without: also the time saved without each kernel.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from typing import Any

from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.upload import upload
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.launcher import Launch, Launcher

POSITION, BLOCKS, REPLAYS, RUNS = 128, 8, 20, 5


def label(launch: Launch) -> str:
    """Return the kernel's name and the matrix or row that it processes."""
    kernel: Any = launch.kernel
    params = kernel.spec.unpack(launch.params)
    sizes = [f"{params[size]:.0f}" for size in ("outs", "width") if size in params]
    return " ".join([kernel.tuning.source(kernel.spec.name), *sizes])


def replayed(runner: Runner, recording: Any, rows: list[ScheduledTokens]) -> tuple[float, float]:
    """Return the median microseconds of a replay, and of the host's part of it."""
    device: Any = runner.device
    whole = []
    host = []
    for _ in range(RUNS):
        runner.multi_step.forget()
        runner.multi_step.decode(rows, 1)
        device.synchronize()
        start = time.perf_counter()
        for _ in range(REPLAYS):
            device.replay(recording)
        host.append(time.perf_counter() - start)
        device.synchronize()
        whole.append(time.perf_counter() - start)
    return statistics.median(whole) / REPLAYS * 1e6, statistics.median(host) / REPLAYS * 1e6


def by_kernel(device: Any, recording: Any, labels: list[str]) -> str:
    """Return the launches and the mean microseconds of each kernel by the device's clock."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for name, (_, took) in zip(labels, device.timings(recording), strict=True):
        times[name].append(took * 1e6)
    return "; ".join(f"{name} {len(took)} x {statistics.mean(took):.2f}" for name, took in times.items())


def show(runner: Runner, requests: int, *, without: bool) -> None:
    """Measure the steps of some requests and print the results."""
    device: Any = runner.device
    rows = [ScheduledTokens(index, POSITION, (index + 1,)) for index in range(requests)]
    tokens = runner.multi_step.decode(rows, 8)[0].tolist()
    recorded = runner._recordings.get("greedy", requests)
    labels = [label(launch) for launch in recorded.launches]
    replayed(runner, recorded.recording, rows)
    step, host = replayed(runner, recorded.recording, rows)
    speed = requests / step * 1e6
    print(f"{requests} requests: {step:.0f} us, {speed:.0f} tokens/s; host {host:.0f}; {len(labels)} launches")
    print("   first text:", *tokens)
    if "timings" in device.info.features:
        print("   kernels, us:", by_kernel(device, recorded.recording, labels))
    for name in dict.fromkeys(labels) if without else ():
        rest = [launch for launch, own in zip(recorded.launches, labels, strict=True) if own != name]
        part = runner.launcher.record(rest).recording
        saved = step - replayed(runner, part, rows)[0]
        print(f"   without {name}: {saved:.0f} us less, {saved / labels.count(name):.2f} each")
        part.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("shape")
    parser.add_argument("--requests", default="1,4,8,32")
    parser.add_argument("--without", action="store_true")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a text stream
    counts = [int(count) for count in arguments.requests.split(",")]
    device, _ = open_device(arguments.backend, False)
    source = SyntheticSource(arguments.shape)
    context = min(4096, source.config.context)
    weights, pool = upload(source, device, context), MemoryPool(device)
    most = max(counts)
    cache = KVCache(
        device, pool, source.config, kv_cache_type="f16", blocks=BLOCKS * most, sequences=most, context=context
    )
    for index in range(most):
        cache.set_table(index, list(range(BLOCKS * index, BLOCKS * (index + 1))))
    runner = Runner(device, Launcher(device), pool, weights, cache, "f16")
    print(f"{arguments.backend}, {arguments.shape}, {device.info.name}")
    for requests in counts:
        show(runner, requests, without=arguments.without)
    runner.free()
    device.close()


if __name__ == "__main__":
    main()
