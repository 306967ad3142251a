"""Measure the host's time of a step with draft tokens beside a simulated GPU that computes nothing.

    python benchmarks/speculative_steps.py --texts 8 --acceptance 0.7 --steps 8:1036,16:1412,24:1677,32:1835

The device (timed_device.py) takes the given microseconds for steps of these rows. Each token follows from the one
before it and from its position, so that a drafter that knows the texts is right with the given probability. Prints the
tokens per second without and with draft tokens, and the microseconds between two steps with draft tokens in which the
device idles. --profile prints the functions that take the most time.

Time is the processor time of this thread, plus the time for which it would wait for the device: so other programs on
the machine hardly change the figures.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import timed_device
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure.speculation import measure_speculation
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.device import DeviceType
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.reference.device import NumpyBuffer
from timed_device import Launch, TimedDevice

_SHAPE = "speculative-steps"
_ROWS = 64
"""Rows up to which each kernel is batch-invariant."""


class Clock:
    """A clock of the processor time of a thread, and of its waits."""

    def __init__(self) -> None:
        self.waited = 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        return time.thread_time() + self.waited


CLOCK = Clock()


class TextDevice(TimedDevice):
    """A simulated device whose tokens follow from the token before and its position, in every kind of step."""

    def _until(self, ready: Callable[[], bool], operation: str) -> None:
        """Wait until the queue is empty."""
        CLOCK.waited += max(0.0, self._idle_at - CLOCK())

    def _read_async(self, buffer: NumpyBuffer, offset: int, nbytes: int) -> Callable[[memoryview], None]:
        copy = buffer.data[offset : offset + nbytes].copy()
        done_at = self._idle_at

        def read(target: memoryview) -> None:
            CLOCK.waited += max(0.0, done_at - CLOCK())
            target[:] = copy.data

        return read

    def _embed(self, launch: Launch) -> None:
        super()._embed(launch)
        self._step = timed_device._words(launch, "step").reshape(-1, 4)

    def _chosen(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        step = self._step[self._step[:, 1] >= 0].astype(np.int64)[:count]
        mixed = (step[:, 0] * 2654435761 + step[:, 1] * 40503) >> 5
        return (timed_device._TOKENS.start + mixed % len(timed_device._TOKENS)).astype(np.int32)

    def _list(self, launch: Launch) -> None:
        params = launch.kernel.spec.unpack(launch.params)
        rows, k = int(params["rows"]), int(params["k"])
        tokens = np.zeros((rows, k), np.int32)
        chosen = self._chosen(rows)
        tokens[: len(chosen), 0] = chosen
        timed_device._words(launch, "ids")[: rows * k] = tokens.ravel()
        values = np.tile(np.arange(k, 0, -1, dtype=np.float32), rows)
        timed_device._words(launch, "values")[: rows * k] = values.view(np.int32)


timed_device._EFFECTS |= {"embed_rows": TextDevice._embed, "top_k": TextDevice._list}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--acceptance", type=float, default=0.7)
    parser.add_argument("--steps", default="8:1036,16:1412,24:1677,32:1835")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    pairs = [entry.split(":") for entry in args.steps.split(",")]
    timed_device.STEPS = tuple((int(rows), 1e-6 * float(us)) for rows, us in pairs)
    time.perf_counter = CLOCK  # of the policy, too
    SHAPES[_SHAPE] = replace(SHAPES["2b4t"], n_layers=2, hidden=256, ffn=640, n_heads=4, n_kv_heads=2, head_dim=64)
    rows = dict.fromkeys(CATALOGUE, _ROWS)
    info = replace(timed_device.info(), type=DeviceType.SOFTWARE, batch_invariant_rows=rows)  # GPUs have 8 rows at most
    device = TextDevice(info)
    options = EngineOptions(speculate="lookup", deterministic=True, context=1024, max_sequences=args.texts)
    engine = Engine(SyntheticSource(_SHAPE), device, options)
    profile = cProfile.Profile()
    if args.profile:
        profile.enable()
    settings = {"prompt_tokens": 16, "max_tokens": args.tokens, "repeat": 3, "sequences": args.texts}
    result = measure_speculation(engine, [args.acceptance], **settings)
    profile.disable()
    (run,) = result.runs
    print(f"{result.plain_speed:.0f} tokens/s without draft tokens, {run.speed:.0f} with them")
    together = run.together / result.plain_together
    print(f"ratio {run.speed / result.plain_speed:.3f}, while all run {together:.3f}")
    print("acceptance", run.acceptance)
    idle: list[float] = []
    for step, following in pairwise(device.steps):
        if args.texts < step.rows <= _ROWS and args.texts < following.rows:
            idle.append(following.began - step.ended)
    print(f"{1e6 * statistics.median(idle or [0.0]):.0f} us without work between two steps with draft tokens")
    print("steps by rows:", dict(sorted(Counter(step.rows for step in device.steps).items())))
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    engine.close()


if __name__ == "__main__":
    main()
