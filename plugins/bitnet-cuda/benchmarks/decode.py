"""Measure the decode speed of one request (random weights), and the time of a step without each of its kernels.

    python plugins/bitnet-cuda/benchmarks/decode.py [--shape NAME] [--lm-head-int8 on] [--sources FOLDER ...]
    [--without]

--sources: folders with kernels that replace the plugin's own, measured alternately with these, so that one run on one
machine shows the gain of a change. --without: per kernel and matrix, the time that a step saves without it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bitnet_core.api import Model, load
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure.benchmark import measure
from bitnet_cuda import compile

POSITIONS = (128, 2048)
TURNS = 3
FOLDERS = compile.FOLDERS
NEVER = "argmax_advance"  # always left out, so that the position of a step stays the same


def opened(sources: Path | None, shape: str, lm_head_int8: Any) -> Model:
    """Return the model, with the kernels that `sources` has in place of the plugin's."""
    compile.FOLDERS = (sources, *FOLDERS) if sources else FOLDERS
    return load(SyntheticSource(shape), "cuda:0", lm_head_int8=lm_head_int8)


def replay_time(device: Any, launches: list[Any]) -> float:
    """Return the median time of a replay in microseconds."""
    graph, times = device.graph_of(lambda: device._queue_all(launches)), []
    for _ in range(7):
        device.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            device.call("GraphLaunch", "time", graph, device.stream)
        device.synchronize()
        times.append((time.perf_counter() - began) / 20 * 1e6)
    return median(times)


def without(device: Any, recording: Any) -> str:
    """Return the time that each kernel adds to a step at its current position, as text."""

    def named(one: Any) -> str:
        sizes = one.kernel.spec.unpack(one.params)
        width = sizes.get("columns", sizes.get("width"))
        return one.kernel.spec.name + (f" {sizes['outs']} x {width}" if "outs" in sizes else "")

    def timed(*names: str) -> float:
        return replay_time(device, [one for one in recording.launches if named(one) not in names])

    all_names = dict.fromkeys(named(one) for one in recording.launches if named(one) != NEVER)
    parts = {name: (timed(NEVER) + timed(NEVER)) / 2 - timed(NEVER, name) for name in all_names}
    return f"a step takes {timed(NEVER):.0f} us; " + ", ".join(f"{name} {us:.0f}" for name, us in parts.items())


@contextmanager
def watched_steps(device: Any, seen: Callable[[Any], object]) -> Iterator[None]:
    """Call `seen` with the recording of each greedy step before the device replays it."""
    replay = device._replay_many

    def watched(recording: Any, times: int) -> None:
        if any(launch.kernel.spec.name == NEVER for launch in recording.launches):
            seen(recording)
        replay(recording, times)

    device._replay_many = watched
    try:
        yield
    finally:
        del device._replay_many  # the class has its own


def in_the_middle(model: Model, positions: int, look: Callable[[Any, Any], str]) -> str:
    """Call `look` with the device and the recording of a step during a generation, and return its result."""
    device: Any = model.device
    said: list[str] = []
    prompt = np.random.default_rng(0).integers(0, model.config.tokens, positions).tolist()
    with watched_steps(device, lambda recording: said or said.append(look(device, recording))):
        model.generate(prompt, max_tokens=8)
    return said[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="2b4t")
    parser.add_argument("--lm-head-int8", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--sources", type=Path, nargs="*", default=[])
    parser.add_argument("--without", action="store_true")
    arguments = parser.parse_args()
    speeds: dict[tuple[str, int], list[float]] = {}
    for _ in range(TURNS):
        for sources in (None, *arguments.sources):
            with opened(sources, arguments.shape, arguments.lm_head_int8) as model:
                for positions in POSITIONS:
                    speed = measure(model, 0.0, positions, 128, 3, 1).decode_speed
                    speeds.setdefault((str(sources or "as it is"), positions), []).append(speed)
    if arguments.without:
        with opened(None, arguments.shape, arguments.lm_head_int8) as model:
            for positions in POSITIONS:
                print(f"at {positions}: {in_the_middle(model, positions, without)}", flush=True)
    for (name, positions), found in speeds.items():
        print(f"{name}, at {positions}: {median(found):,.0f} tokens/s of {', '.join(f'{one:,.0f}' for one in found)}")


if __name__ == "__main__":
    main()
