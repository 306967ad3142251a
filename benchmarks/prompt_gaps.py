"""Measure how long a simulated GPU has nothing to do while the prompts of a burst are computed.

    python benchmarks/prompt_gaps.py --requests 64 --every-ms 0 0.3 0.7

The device (timed_device.py) takes the time of an H200 with 2B-4T and computes nothing, and the model is tiny but for
its vocabulary. Requests come one by one, in the time given, to a thread that steps the engine, as in a server; HTTP is
left out. Prints medians of: the steps with prompts, the milliseconds from the beginning of the first to the end of the
last, those in which the device was idle, and those from a request's arrival to its first token.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from dataclasses import dataclass, replace

import numpy as np
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.replicas.warmup import warm_up
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.schedule.results import RequestOutput
from bitnet_core.engine.thread import EngineThread
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from timed_device import TimedDevice, info

_SHAPE = "prompt-gaps"


@dataclass(frozen=True)
class Opened:
    """The engine, as an EngineThread needs it."""

    engine: Engine
    device: TimedDevice

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


@dataclass(frozen=True)
class Burst:
    """The figures of one burst. span, idle: seconds; waits: seconds from each arrival to the first token."""

    steps: int
    span: float
    idle: float
    waits: list[float]


class Bursts:
    """Bursts of requests with prompts of their own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._random = np.random.default_rng(0)
        self._first: dict[Request, float] = {}
        self._left = 0
        self._done = threading.Event()
        self._thread = EngineThread(self._open, self._deliver)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def run(self, every: float) -> Burst:
        """Run a burst with `every` seconds between two requests."""
        opened = self._thread.call(lambda model: model).result()
        opened.device.steps.clear()
        self._first.clear()
        self._left = self._args.requests
        self._done.clear()
        prompts = self._random.integers(0, opened.engine.config.tokens, (self._left, self._args.prompt)).tolist()
        requests: list[Request] = []
        began = time.perf_counter()
        for number, prompt in enumerate(prompts):
            time.sleep(max(0.0, began + number * every - time.perf_counter()))
            request = opened.engine.new_request(prompt, max_tokens=self._args.tokens)
            requests.append(request)
            self._thread.call(lambda model, request=request: model.engine.queue_request(request))
        self._done.wait()
        waits = [self._first[request] - request.added for request in requests]
        return _burst(opened.device, waits, self._args.requests)

    def _open(self) -> Opened:
        device = TimedDevice(info())
        options = EngineOptions(max_sequences=self._args.requests)
        engine = Engine(SyntheticSource(_SHAPE), device, options)
        for _ in warm_up(engine, [SamplingParams(temperature=0)], lambda *progress: None):
            pass  # steps of all sizes are recorded
        return Opened(engine, device)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        now = time.perf_counter()
        for request, tokens in outputs:
            if tokens:
                self._first.setdefault(request, now)
            self._left -= request.finish_reason is not None
        if not self._left:
            self._done.set()


def _burst(device: TimedDevice, waits: list[float], requests: int) -> Burst:
    """Return the figures of the steps up to the last with prompts, which have more rows than decode steps."""
    last = max(at for at, step in enumerate(device.steps) if step.rows > requests)
    steps = device.steps[: last + 1]
    idle = sum(after.began - before.ended for before, after in itertools.pairwise(steps))
    prompts = sum(step.rows > requests for step in steps)
    return Burst(prompts, steps[-1].ended - steps[0].began, idle, waits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--every-ms", type=float, nargs="+", default=[0.0, 0.3, 0.7])
    parser.add_argument("-p", "--prompt", type=int, default=128)
    parser.add_argument("-n", "--tokens", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=21)
    args = parser.parse_args()
    SHAPES[_SHAPE] = replace(SHAPES["2b4t"], hidden=256, ffn=640, n_heads=4, n_kv_heads=2, head_dim=64)
    bursts = Bursts(args)
    for every in args.every_ms:
        runs = [bursts.run(every / 1e3) for _ in range(args.repeat + 3)][3:]
        waits = [wait for run in runs for wait in run.waits]
        low, middle, high = statistics.quantiles([run.idle for run in runs], n=4)
        print(
            f"a request every {every} ms: {statistics.median(run.steps for run in runs)} steps with prompts in "
            f"{1e3 * statistics.median(run.span for run in runs):.1f} ms, "
            f"idle {1e3 * middle:.1f} ms ({1e3 * low:.1f} to {1e3 * high:.1f} in half of the runs), "
            f"first token after {1e3 * statistics.median(waits):.1f} ms",
            flush=True,
        )
    bursts.close()


if __name__ == "__main__":
    main()
