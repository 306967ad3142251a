"""Check and measure the OpenCL backend on a GPU.

    pip install "./hal[test]" "./core[test]" ./plugins/bitnet-opencl
    python gpu.py [--device opencl:0] [--json FILE]

Prints, and with --json writes, the device's description, the texts of the shipped model and of the numpy device, the
speed and memory of a 2B-4T shape with random weights, and the time of every kernel of one decoded token. The
conformance kit is separate: `pytest --require-device plugins/bitnet-opencl/tests`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import bitnet_core
import numpy as np
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.measure.benchmark import measure
from bitnet_opencl.device import OpenCLDevice
from spin import device_seconds

PROMPT = (
    "Once upon a time there was a shy fox named Mia. Next door lived Otto, an old bear who could eat all day.\n\n"
    "One Sunday Mia got the hiccups."
)
CLEAR = 18  # tokens after it whose logits lead by far, so that no order of sums changes them


def story(request: str) -> str:
    """Return the text that the shipped model generates."""
    with bitnet_core.load("stories", request) as model:
        return model.generate(PROMPT, max_tokens=CLEAR).text


def second_start(request: str) -> float:
    """Return the seconds from a cold start to the first token of the shipped model, with all programs in the cache."""
    start = time.perf_counter()
    with bitnet_core.load("stories", request) as model:
        model.generate(PROMPT, max_tokens=1)
    return time.perf_counter() - start


def by_name(timings: list[tuple[str, float]]) -> dict[str, float]:
    """Return the milliseconds by kernel, the longest first."""
    times: defaultdict[str, float] = defaultdict(float)
    for name, seconds in timings:
        times[name] += seconds * 1e3
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def prompt_times(model: bitnet_core.Model, rows: int) -> dict[str, float]:
    """Return the milliseconds of each kernel in a prompt of `rows` tokens, by the device's clock."""
    device: Any = model.device
    launches: list[Any] = []
    launch = device.launch

    def watched(*arguments: Any) -> None:
        launches.append(arguments)
        launch(*arguments)

    device.launch = watched
    model.generate(np.random.default_rng(1).integers(0, model.config.vocab, rows).tolist(), max_tokens=1)
    device.launch = launch
    with device.record() as recording:
        for arguments in launches:
            launch(*arguments)
    return by_name(device.timings(recording))


def kernel_times(model: bitnet_core.Model, context: int) -> dict[str, float]:
    """Return the milliseconds of each kernel in one decoded token at `context` positions, by the device's clock."""
    device = model.device
    if not isinstance(device, OpenCLDevice):
        raise TypeError(f"{device.info.request} is not an OpenCL device")
    replayed: list[Any] = []
    replay = device.replay

    def watched(recording: Any) -> None:
        replayed.append(recording)
        replay(recording)

    device.replay = watched  # type: ignore[method-assign]  # to learn which recording decodes
    prompt = np.random.default_rng(0).integers(0, model.config.vocab, context).tolist()
    model.generate(prompt, max_tokens=8)
    device.replay = replay  # type: ignore[method-assign]
    return by_name(device.timings(replayed[-1]))


def replay_times(model: bitnet_core.Model, context: int) -> dict[str, float]:
    """Return the milliseconds of the host and of the device, each alone, for a decoded token at `context` positions."""
    device: Any = model.device
    replayed: list[Any] = []
    replay = device.replay

    def watched(recording: Any) -> None:
        replayed.append(recording)
        replay(recording)

    device.replay = watched
    model.generate(np.random.default_rng(0).integers(0, model.config.vocab, context).tolist(), max_tokens=8)
    device.replay = replay
    recording = replayed[-1]
    host = []
    for _ in range(10):
        device.synchronize()
        start = time.perf_counter()
        replay(recording)
        host.append(time.perf_counter() - start)
    alone = device_seconds(device, lambda: replay(recording))
    return {"launches": len(recording.native), "host": min(host) * 1e3, "device": alone * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    text = story(options.device)
    results: dict[str, Any] = {
        "stories_text": text,
        "stories_as_numpy": text == story("numpy"),
        "stories_second_start_seconds": second_start(options.device),
    }
    start = time.perf_counter()
    with bitnet_core.load(SyntheticSource("2b4t"), options.device) as model:
        info = model.device.info
        results["device"] = {"name": info.name, "driver": info.driver, **info.extra}
        loaded = time.perf_counter() - start
        results["2b4t"] = measure(model, loaded, options.prompt_tokens, options.max_tokens, 3).document()
        results["replay_ms"] = replay_times(model, options.prompt_tokens)
        results["decode_ms"] = kernel_times(model, options.prompt_tokens)
        # another length, since prompts of a known length are replayed, not launched
        results["prompt_ms"] = prompt_times(model, options.prompt_tokens - 1)
    document = json.dumps(results, indent=2)
    print(document)
    if options.json:
        options.json.write_text(document + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
