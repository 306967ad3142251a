"""Print the features of a Vulkan device, and time the backend's kernels on it with several tunings.

    pip install "./hal[test]" "./core[test]" ./plugins/bitnet-vulkan
    python gpu.py [features] [launches] [model] [prompts] [memory]  [2b4t | bonsai-8b | ...] [brief] [512] [a128]

features: the driver's features. launches: the cost of a dispatch, with and without dependencies. model: decode of a
shape with random weights, in total and by kernel (timestamps), for each tuning. prompts: the same for a prompt. memory:
the memory of a loaded model. A number is the prompt's length; brief: the selected tuning only; a128: activation scales
of 128 columns. `bitnet bench` measures the whole program.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from bitnet_core.api import load
from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.measure.benchmark import measure
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.upload import upload
from bitnet_hal.device import Tuning, whole
from bitnet_hal.discovery.request import resolve_request
from bitnet_hal.driver.enumerate import by_index
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.base import RMS_NORM_QUANTIZE
from bitnet_hal.launcher import Launcher
from bitnet_hal.tuning.query import TuningQuery
from bitnet_vulkan.describe import usable
from bitnet_vulkan.device import VulkanDevice
from bitnet_vulkan.driver import function, vk

RNG = np.random.default_rng(0)


def seconds(action: Callable[[], object], device: VulkanDevice, runs: int = 5) -> float:
    """Return the median seconds of an action and of the commands that it queues, after a warm-up."""
    times: list[float] = []
    awake = time.perf_counter() + 0.05
    while len(times) < runs:
        start = time.perf_counter()
        action()
        device.synchronize()
        if start > awake:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def features(device: VulkanDevice) -> None:
    """Print the features that the driver offers."""
    print(device.info)
    call = function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    for shape in vk().listed(call, "list", by_index(usable(), device.info.index, "vulkan").handle):
        print("matrix:", shape)


def launches(device: VulkanDevice) -> None:
    """Measure a sequence of small kernels."""
    spec, width, constants = RMS_NORM_QUANTIZE, 128, {"NORM": 1, "ABLOCK": 0}
    params: Mapping[str, int | float] = {"rows": 1, "width": width, "stride": width, "eps": 1e-5}
    kernel = device.compile(spec, constants, device.tuning(spec, constants, params))
    sets = [[device.alloc(n) for n in (4 * width, 4 * width, width, 4, 4)] for _ in range(64)]
    for label, count in (("each after the last", 1), ("64 at a time", 64)):
        with device.record() as recording:
            for i in range(1024):
                device.launch(kernel, (1, 1, 1), [whole(b) for b in sets[i % count]], spec.pack(params))
        each = seconds(lambda: device.replay(recording), device) / 1024
        print(f"1024 dispatches, {label}: {each * 1e6:.2f} us each")
        recording.close()
    start = time.perf_counter()
    for _ in range(1000):
        device.launch(kernel, (1, 1, 1), [whole(b) for b in sets[0]], spec.pack(params))
    print(f"direct launch: {(time.perf_counter() - start) * 1e3:.2f} us of the host's time")
    device.synchronize()


Change = Callable[[TuningQuery, Tuning], Tuning]


@contextmanager
def changed(change: Change) -> Iterator[None]:
    """Replace the selected tunings inside the block."""
    original = VulkanDevice.select_tuning

    def select_tuning(query: TuningQuery) -> Tuning:
        return change(query, original(query))

    VulkanDevice.select_tuning = staticmethod(select_tuning)
    try:
        yield
    finally:
        VulkanDevice.select_tuning = staticmethod(original)


def _of(kernel: str, **private: int) -> Change:
    def change(want: TuningQuery, chosen: Tuning) -> Tuning:
        return replace(chosen, private={**chosen.private, **private}) if want.spec.name == kernel else chosen

    return change


def _without(*kernels: str) -> Change:
    def change(want: TuningQuery, chosen: Tuning) -> Tuning:
        if want.spec.name in kernels:
            raise UnsupportedError("left out")
        return chosen

    return change


def _tiles(tile_n: int, tile_t: int, wave_t: int) -> Change:
    def change(want: TuningQuery, chosen: Tuning) -> Tuning:
        if chosen.variant != "coop" or not want.spec.name.startswith("matmul"):
            return chosen
        tile = {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}
        return replace(chosen, tile=tile, private={**chosen.private, "WAVE_T": wave_t})

    return change


def _heads(tile_n: int, tile_t: int) -> Change:
    def change(want: TuningQuery, chosen: Tuning) -> Tuning:
        if chosen.variant != "coop" or want.spec.name != "attention":
            return chosen
        tile = {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}
        return replace(chosen, tile=tile, private={**chosen.private, "GROUP": 2 * tile_n * tile_t})

    return change


AS_IT_IS: Change = lambda want, chosen: chosen  # noqa: E731  # one of the table below
DECODES: dict[str, Change] = {
    "as it is": AS_IT_IS,
    "all of the head": _without("approx_logits"),
    "1 row of the gate": _of("decoder_layer", ROWS=1),
    "16 lanes, 2 rows of the gate": _of("decoder_layer", LANES=16, ROWS=2),
    "batch 1": _of("decoder_layer", BATCH=1),
    "groups of 256": _of("decoder_layer", GROUP=256),
    "layers apart": _without("decoder_layer"),
    "norms apart": _without("decoder_layer", "norm_matmul", "norm_matmul_glu"),
}
PROMPTS: dict[str, Change] = {
    "as it is": AS_IT_IS,
    "tiles of 128 x 128": _tiles(128, 128, 64),
    "tiles of 128 x 64": _tiles(128, 64, 32),
    "tiles of 64 x 64": _tiles(64, 64, 32),
    "2 heads, 32 rows": _heads(2, 32),
}


def by_kernel(device: VulkanDevice, recording: Any) -> dict[str, tuple[int, float]]:
    """Return (dispatches, total microseconds) by kernel, medians of five runs."""
    runs = []
    for _ in range(5):
        times: defaultdict[str, list[float]] = defaultdict(list)
        for launch, (name, took) in zip(recording.launches, device.timings(recording), strict=True):
            outs = f" {launch.kernel.spec.unpack(launch.params)['outs']}" if "matmul" in name else ""
            times[name + outs].append(took)
        runs.append(times)
    return {name: (len(runs[0][name]), statistics.median(sum(run[name]) for run in runs) * 1e6) for name in runs[0]}


def _line(table: Mapping[str, tuple[int, float]]) -> str:
    return "; ".join(f"{name} {n} x {us / n:.2f}" for name, (n, us) in table.items())


@contextmanager
def watched(device: VulkanDevice, method: str) -> Iterator[list[tuple[Any, ...]]]:
    """Collect the arguments of every call of a device's method inside the block."""
    original, calls = getattr(device, method), []

    def watch(*arguments: Any) -> None:
        calls.append(arguments)
        original(*arguments)

    setattr(device, method, watch)
    try:
        yield calls
    finally:
        delattr(device, method)


def model(
    device: VulkanDevice, shape: str, context: int, changes: Mapping[str, Change], block: int | None, *, prompts: bool
) -> None:
    """Measure prefill or decode of a model with random weights.

    block: the columns of an activation scale, if not its own.
    """
    source = SyntheticSource(shape)
    weights, pool = upload(source, device, 4096), MemoryPool(device)
    weights.config = EngineOptions(activation_group_size=block).config_of(source.config)
    prompt = [ScheduledTokens(0, 0, tuple(RNG.integers(0, source.config.vocab, context).tolist()))]
    expected: npt.NDArray[np.int32] | None = None
    for label, change in changes.items():
        with changed(change):
            cache = KVCache(device, pool, source.config, kv_cache_type="f16", blocks=64, sequences=8, context=4096)
            cache.set_table(0, list(range(64)))
            runner = Runner(device, Launcher(device), pool, weights, cache, "f16")
            runner.forward(prompt, [], context)
            if prompts:
                _prompt(device, runner, prompt, label)
            else:
                tokens = _decode(device, runner, context, label)
                if expected is not None and not np.array_equal(tokens, expected):
                    print("OTHER TOKENS")
                expected = tokens
            runner.free()
    weights.free(device)
    pool.close()


def _prompt(device: VulkanDevice, runner: Runner, prompt: Sequence[ScheduledTokens], label: str) -> None:
    """Print speed and timestamps of a prompt."""
    rows = len(prompt[0].tokens)
    with watched(device, "launch") as calls:
        runner.forward(prompt, [], rows)
    took = seconds(lambda: runner.forward(prompt, [], rows), device)
    print(f"prompt of {rows}, {label}: {len(calls)} launches, {took * 1e3:.2f} ms, {rows / took:.0f} tokens/s")
    with device.record() as recording:
        for arguments in calls:
            device.launch(*arguments)
    table = by_kernel(device, recording)
    print(f"    {sum(us for _, us in table.values()) / 1e3:.2f} ms in kernels:", _line(table))
    recording.close()


def _decode(device: VulkanDevice, runner: Runner, context: int, label: str) -> npt.NDArray[np.int32]:
    """Print speed and timestamps of decoding. Returns the tokens."""
    with watched(device, "replay") as replays:
        tokens = runner.multi_step.decode([ScheduledTokens(0, context, (1,))], 16)
    recording = replays[-1][0]
    at = [ScheduledTokens(0, context + 16, (int(tokens[0, -1]),))]
    took = seconds(lambda: runner.multi_step.decode(at, 32), device, 3) / 32
    start = time.perf_counter()
    for _ in range(32):
        device.replay(recording)
    host = (time.perf_counter() - start) / 32
    device.synchronize()
    table = by_kernel(device, recording)
    count, kernels = len(recording.launches), sum(us for _, us in table.values())
    print(f"decode at {context}, {label}: {took * 1e6:.1f} us, {1 / took:.0f} tokens/s; host {host * 1e6:.1f} us")
    print(f"    {count} dispatches, {kernels:.1f} us in kernels:", _line(table))
    return tokens


def memory(shape: str) -> None:
    """Print the device memory of a loaded model and the bytes of its weights and KV cache."""
    witness = VulkanDevice(usable()[0])
    free = witness.free_memory()
    with load(SyntheticSource(shape), resolve_request("vulkan:0")) as loaded:
        measure(loaded, 0.0, 512, 16, 1, 1)
        taken, plan = free - witness.free_memory(), loaded.engine.memory_plan()
    needed = plan.weights + plan.kv_cache
    print(f"device memory: {taken} bytes; weights and KV cache {needed}, so {taken / needed - 1:.1%} more; {plan}")
    witness.close()


def main() -> None:
    words = sys.argv[1:]
    parts = [word for word in words if word in ("features", "launches", "model", "prompts", "memory")]
    shape = next((word for word in words if word not in (*parts, "brief", "a128") and not word.isdigit()), "2b4t")
    block = 128 if "a128" in words else None
    context = next((int(word) for word in words if word.isdigit()), 512)
    most = 1 if "brief" in words else None
    parts = parts or ["features", "launches", "model", "prompts", "memory"]
    if "memory" in parts:
        memory(shape)
    device = VulkanDevice(usable()[0])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a text stream
    try:
        if "features" in parts:
            features(device)
        if "launches" in parts:
            launches(device)
        if "model" in parts:
            model(device, shape, context, dict(list(DECODES.items())[:most]), block, prompts=False)
        if "prompts" in parts:
            model(device, shape, context, dict(list(PROMPTS.items())[:most]), block, prompts=True)
    finally:
        device.close()


if __name__ == "__main__":
    main()
