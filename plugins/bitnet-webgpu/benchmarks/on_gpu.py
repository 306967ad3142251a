"""Check and measure the WebGPU backend on a GPU.

    pip install "./hal[test]" "./core[test]" ./plugins/bitnet-webgpu
    python plugins/bitnet-webgpu/benchmarks/on_gpu.py [--device webgpu:0] [--json FILE] [--no-kit] [--ways]

Prints, and with --json writes: the results on the device of the conformance kit and of the plugin's own tests; the text
of the shipped model and of the numpy device; the speed of the 2B-4T shape (--shape) with random weights after prompts
of 128, 512 and 2,048 tokens; the host's time for a token; and the time of each kernel, of a token and of prompts, by
the device's clock. --ways also measures other tunings: without subgroups, and with a single tile in products of
prompts; and each product with all candidate tunings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bitnet_core
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.measure.benchmark import measure
from bitnet_core.measure.products import time_products
from bitnet_hal.device import Tuning
from bitnet_hal.tuning.query import TuningQuery
from bitnet_webgpu import tuning
from bitnet_webgpu.device import WebGpuDevice

TESTS = Path(__file__).parents[1] / "tests"
PROMPT = (
    "Once upon a time there was a shy fox named Mia. Next door lived Otto, an old bear who could eat all day.\n\n"
    "One Sunday Mia got the hiccups."
)
CLEAR = 18  # tokens after it whose logits lead by far, so that no order of sums changes them
TOKENS, PROMPTS = 64, (128, 512, 2048)
PATIENCE = 30.0  # seconds for other tunings of products
LARGEST = "not ten_thousand and not 70001"  # cases that take minutes


def kit() -> str:
    """Run pytest and return its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--require-device", "-k", LARGEST]
    files = [str(TESTS / f"test_{name}.py") for name in ("conformance", "gpu_tuning", "host", "describe")]
    found = subprocess.run([*command, *files], check=False, capture_output=True, text=True)
    print(found.stdout[-4000:], flush=True)
    return found.stdout.strip().splitlines()[-1]


def story(request: str) -> str:
    """Return the text that the shipped model generates."""
    with bitnet_core.load("stories", request) as model:
        return model.generate(PROMPT, max_tokens=CLEAR).text


def by_name(model: bitnet_core.Model, recorded: Any) -> dict[str, list[float]]:
    """Return (launches, milliseconds) by kernel, variant and grid, the longest first."""
    device: Any = model.device
    times: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for (name, seconds), launch in zip(device.timings(recorded.recording), recorded.launches, strict=True):
        found = times[f"{name} {launch.kernel.tuning.variant} {launch.grid}"]
        found[0] += 1
        found[1] = round(found[1] + seconds * 1e3, 4)
    return dict(sorted(times.items(), key=lambda item: -item[1][1]))


def host_times(model: bitnet_core.Model, recorded: Any) -> dict[str, float]:
    """Return the milliseconds per token that the host spends encoding and submitting, the total, and the dispatches."""
    device: Any = model.device
    device.synchronize()
    start = time.perf_counter()
    for _ in range(TOKENS):
        device.replay(recorded.recording)
    device.submit()
    device.settle()
    encoded = time.perf_counter()
    device.synchronize()
    times = {"host": (encoded - start) * 1e3 / TOKENS, "all": (time.perf_counter() - start) * 1e3 / TOKENS}
    return times | {"dispatches": len(device._recordings[id(recorded.recording)].native)}


def measured(shape: str, device: str, prompts: tuple[int, ...], *, kernels: bool = True) -> dict[str, Any]:
    """Measure the speeds of a shape, and the time of each kernel."""
    found: dict[str, Any] = {"speed": {}}
    start = time.perf_counter()
    with bitnet_core.load(SyntheticSource(shape), device) as model:
        loaded = time.perf_counter() - start
        found["device"] = str(model.device.info)
        for prompt in (size for size in prompts if size + 128 <= model.engine.max_model_len):
            result = measure(model, loaded, prompt, 128, 3).document()
            found["speed"][prompt] = result
            print(f"{prompt}: {result['prefill_speed']:,.0f} and {result['decode_speed']:,.1f} tokens/s", flush=True)
        for name, recorded in model.engine.recordings().items() if kernels else ():
            found[f"kernels: {name}"] = by_name(model, recorded)
            if name.startswith("greedy"):
                found[f"milliseconds a token: {name}"] = host_times(model, recorded)
    return found


def ways(shape: str, device: str) -> dict[str, Any]:
    """Measure speeds with other tunings than the plugin's."""
    chosen = WebGpuDevice.tuning

    def plain(self: WebGpuDevice, spec: Any, constants: Any, params: Any) -> Tuning:
        info = replace(self.info, extra={**self.info.extra, "subgroups": 1})
        return tuning.select_tuning(TuningQuery(spec, constants, params, info))

    settings = {"without subgroups": plain}
    settings |= {f"tiles of {rows} rows, {group} threads": tiles(rows, group) for rows, group in tuning.PROMPT_TILES}
    found = {}
    for name, select_tuning in settings.items():
        print(name, flush=True)
        WebGpuDevice.tuning = select_tuning  # type: ignore[method-assign]  # for this measurement
        found[name] = measured(shape, device, PROMPTS[:2], kernels=False)["speed"]
    WebGpuDevice.tuning = chosen  # type: ignore[method-assign]
    return found


def tiles(rows: int, group: int) -> Callable[[WebGpuDevice, Any, Any, Any], Tuning]:
    """Return a function that replaces the tile of tiled products by this one."""

    def tuned(self: WebGpuDevice, spec: Any, constants: Any, params: Any) -> Tuning:
        found = tuning.candidate_tunings(TuningQuery(spec, constants, params, self.info))
        such = (one for one in found if (one.tile.get("TILE_T"), one.private["GROUP"]) == (rows, group))
        return next((one for one in such if one.variant == "tiled"), found[0])

    return tuned


def products(shape: str, device: str) -> dict[str, Any]:
    """Return the microseconds of each product of a token and of a prompt, as selected and with the fastest tuning."""
    found = {}
    with bitnet_core.load(SyntheticSource(shape), device) as model:
        measure(model, 0.0, PROMPTS[1], 16, 1)
        for one in time_products(model.engine, time.perf_counter() + PATIENCE):
            best = f"{one.tuning.tile} {one.tuning.private}" if one.tuning else "as it is"
            found[one.key] = {"us": one.usual * 1e6, "best": one.seconds * 1e6, "launches": one.launches, "with": best}
            print(f"{one.key}: {one.usual * 1e6:,.1f} us, {one.seconds * 1e6:,.1f} {best}", flush=True)
    return found


def main() -> None:
    """Print and write the figures."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="webgpu:0")
    options.add_argument("--json", type=Path)
    options.add_argument("--shape", default="2b4t", help="as of `bitnet bench --synthetic`")
    options.add_argument("--no-kit", action="store_true")
    options.add_argument("--ways", action="store_true")
    asked = options.parse_args()
    found: dict[str, Any] = {} if asked.no_kit else {"kit": kit()}
    found["story"] = {"device": story(asked.device), "numpy": story("numpy")}
    found["same text"] = found["story"]["device"] == found["story"]["numpy"]
    print(json.dumps(found, indent=1), flush=True)
    found |= measured(asked.shape, asked.device, PROMPTS)
    if asked.ways:
        found["products"] = products(asked.shape, asked.device)
        found["ways"] = ways(asked.shape, asked.device)
    text = json.dumps(found, indent=1, default=str)
    print(text)
    if asked.json:
        asked.json.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
