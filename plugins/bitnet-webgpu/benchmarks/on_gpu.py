"""Check and measure the WebGPU backend on a GPU.

    pip install ./core[test] ./plugins/bitnet-webgpu
    python plugins/bitnet-webgpu/benchmarks/on_gpu.py [--device webgpu:0] [--json FILE] [--kit]

Prints, and with --json writes, what the device is, the text of the shipped model beside the numpy device's, the speed
of the 2B-4T shape (--shape) with random weights, the host's time for one replay of a token, and the time of each kernel
by the device's clock.
--kit runs the conformance kit first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import bitnet_core
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.measure.benchmark import measure

TESTS = Path(__file__).parents[1] / "tests"
PROMPT = (
    "Once upon a time there was a shy fox named Mia. Next door lived Otto, an old bear who could eat all day.\n\n"
    "One Sunday Mia got the hiccups."
)
CLEAR = 18  # tokens after it that are far ahead of the next best, so that no order of sums changes them
TOKENS = 64


def story(request: str) -> str:
    """What the shipped model writes."""
    with bitnet_core.load("stories", request) as model:
        return model.generate(PROMPT, max_tokens=CLEAR).text


def by_name(model: bitnet_core.Model, recorded: Any) -> dict[str, list[float]]:
    """Launches and milliseconds of each kernel and variant, the longest first."""
    device: Any = model.device
    times: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for (name, seconds), launch in zip(device.timings(recorded.recording), recorded.launches, strict=True):
        found = times[f"{name} {launch.kernel.tuning.variant} {launch.grid}"]
        found[0] += 1
        found[1] = round(found[1] + seconds * 1e3, 4)
    return dict(sorted(times.items(), key=lambda item: -item[1][1]))


def host_times(model: bitnet_core.Model, recorded: Any) -> dict[str, float]:
    """Milliseconds of one token: what the host spends encoding and submitting, and until all is done."""
    device: Any = model.device
    device.synchronize()
    start = time.perf_counter()
    for _ in range(TOKENS):
        device.replay(recorded.recording)
    device.queue.submit()
    encoded = time.perf_counter()
    device.synchronize()
    return {"host": (encoded - start) * 1e3 / TOKENS, "all": (time.perf_counter() - start) * 1e3 / TOKENS}


def main() -> None:
    """Print and write the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="webgpu:0")
    options.add_argument("--json", type=Path)
    options.add_argument("--shape", default="2b4t", help="as of `bitnet bench --synthetic`")
    options.add_argument("--kit", action="store_true")
    chosen = options.parse_args()
    found: dict[str, Any] = {}
    if chosen.kit:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--require-device"]
        files = [str(TESTS / name) for name in ("test_conformance.py", "test_gpu_tuning.py", "test_host.py")]
        found["kit"] = subprocess.run([*command, *files], check=False).returncode
    found["story"] = {"device": story(chosen.device), "numpy": story("numpy")}
    print(json.dumps(found, indent=1), flush=True)
    start = time.perf_counter()
    with bitnet_core.load(SyntheticSource(chosen.shape), chosen.device) as model:
        loaded = time.perf_counter() - start
        found["device"] = str(model.device.info)
        found["speed"] = {}
        for prompt in (size for size in (512, 2048) if size + 128 <= model.engine.limit):
            found["speed"][prompt] = measure(model, loaded, prompt, 128, 3).document()
            print(prompt, found["speed"][prompt], flush=True)
        for name, recorded in model.engine.recordings().items():
            found[f"kernels: {name}"] = by_name(model, recorded)
            if name.startswith("greedy"):
                found[f"milliseconds a token: {name}"] = host_times(model, recorded)
    text = json.dumps(found, indent=1, default=str)
    print(text)
    if chosen.json:
        chosen.json.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
