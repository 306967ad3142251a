"""Look at a Vulkan device and time the backend's kernels on it, many ways to tune them side by side.

    pip install bitnet-core[test] bitnet-vulkan
    python gpu.py [features] [launches] [products] [model] [memory]     (all of them without a name)

features: what the driver offers. launches: what a dispatch costs, dependent on the last one or not. products: ternary
products of 1, 8 and 512 rows by tuning, each compared with exact integers. model: a 2B-4T shape with random weights,
prompt and decode, in whole and by kernel (timestamps), by tuning. `bitnet bench` measures the whole program.
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
from bitnet_core.benchmark import measure
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.runner import Runner, Span
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.hal import whole
from bitnet_core.hal.pool import MemoryPool
from bitnet_core.hal.request import resolve_request
from bitnet_core.kernels.catalogue import RMS_NORM_QUANTIZE
from bitnet_core.model.launch import Launcher
from bitnet_core.model.upload import upload
from bitnet_vulkan import tuning
from bitnet_vulkan.binding import Handle, ffi, lib, make
from bitnet_vulkan.device import VulkanDevice
from bitnet_vulkan.dispatch import Dispatch
from bitnet_vulkan.features import matrix_shapes
from bitnet_vulkan.layer import Launch
from bitnet_vulkan.pipelines import Source
from products import RNG, SHAPES, TINY, Constants, products, seconds


def features(device: VulkanDevice) -> None:
    """What the driver offers."""
    print(device.info)
    print(device._physical.features)
    for shape in matrix_shapes(device._instance.handle, device._physical.handle):
        print("matrix M N K, types of A B C R, scope:", *shape)


def launches(device: VulkanDevice) -> None:
    """Small kernels in a row."""
    spec, width = RMS_NORM_QUANTIZE, 128
    params: Mapping[str, int | float] = {"rows": 1, "width": width, "stride": width, "eps": 1e-5}
    constants = {"NORM": 1, **device.tuning(spec, {"NORM": 1}, params)}
    kernel = device.compile(spec, constants)
    sets = [[device.alloc(n) for n in (4 * width, 4 * width, width, 4, 4)] for _ in range(64)]
    for label, count in (("each after the last", 1), ("64 at a time", 64)):
        with device.record() as recording:
            for i in range(1024):
                device.launch(kernel, (1, 1, 1), [whole(b) for b in sets[i % count]], spec.pack(params))
        each = seconds(lambda: device.replay(recording), device) / 1024
        print(f"1024 dispatches, {label}: {each * 1e6:.2f} us each")
        recording.close()
    null, vk = ffi().NULL, lib()
    full = make("VkMemoryBarrier", srcAccessMask=0x1040, dstAccessMask=0x1860)
    exact = make("VkMemoryBarrier", srcAccessMask=0x40, dstAccessMask=0x20)
    barriers: dict[str, Callable[[Handle], object]] = {
        "none": lambda c: None,
        "stages alone": lambda c: vk.vkCmdPipelineBarrier(c, 0x800, 0x800, 0, 0, null, 0, null, 0, null),
        "write to read": lambda c: vk.vkCmdPipelineBarrier(c, 0x800, 0x800, 0, 1, exact, 0, null, 0, null),
        "with transfers": lambda c: vk.vkCmdPipelineBarrier(c, 0x1800, 0x1800, 0, 1, full, 0, null, 0, null),
    }
    for each_width in (128, 2560):
        for label, barrier in barriers.items():
            took = _with_barrier(device, each_width, barrier)
            print(f"rms_norm_quantize of {each_width}, barrier {label}: {took:.2f} us")
    start = time.perf_counter()
    for _ in range(1000):
        device.launch(kernel, (1, 1, 1), [whole(b) for b in sets[0]], spec.pack(params))
    print(f"direct launch: {(time.perf_counter() - start) * 1e3:.2f} us of the host's time")
    device.synchronize()
    for buffers in sets:
        for buffer in buffers:
            device.free(buffer)


def _with_barrier(device: VulkanDevice, width: int, barrier: Callable[[Handle], object]) -> float:
    """Microseconds of one of 1000 small dispatches with this barrier between each two."""
    params: Mapping[str, int | float] = {"rows": 1, "width": width, "stride": width, "eps": 1e-5}
    constants = {"NORM": 1, **device.tuning(RMS_NORM_QUANTIZE, {"NORM": 1}, params)}
    kernel = device.compile(RMS_NORM_QUANTIZE, constants)
    buffers = [device.alloc(n) for n in (4 * width, 4 * width, width, 4, 4)]
    views = tuple(whole(buffer) for buffer in buffers)
    dispatch = device._dispatch(Launch(kernel, (1, 1, 1), views, RMS_NORM_QUANTIZE.pack(params)))
    free = replace(dispatch, reads=[], writes=[])  # no barriers but ours
    with device.record() as recording:
        if recording.commands is None:
            raise RuntimeError("the recording is closed")
        for _ in range(1000):
            free.put(recording.commands)
            barrier(recording.commands.handle)
    each = seconds(lambda: device.replay(recording), device) * 1e3
    recording.close()
    for buffer in buffers:
        device.free(buffer)
    return each


Change = Callable[[str, Constants, Mapping[str, int | float]], Constants]


@contextmanager
def changed(change: Change) -> Iterator[None]:
    """Another tuning for a while."""
    original, layer = tuning.choose, tuning.layer

    def choose(physical: Any, spec: Any, constants: Any, params: Any) -> Constants:
        chosen = original(physical, spec, constants, params)
        return {**chosen, **change(spec.name, chosen, params)}

    tuning.choose = choose
    tuning.layer = lambda physical: {**(chosen := layer(physical)), **change("decoder_layer", chosen, {})}
    try:
        yield
    finally:
        tuning.choose, tuning.layer = original, layer


STREAMED = ("matmul_ternary", "norm_matmul", "norm_matmul_glu")
"""Products that stream weights past a row or a few."""


def _few(lanes: Mapping[int, int], rows_per: Mapping[int, int]) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name not in STREAMED or "LANES" not in chosen:
            return {}
        n = lanes.get(int(params["width"]), chosen["LANES"])
        each = rows_per.get(int(params["outs"]), chosen["TILE_N"] * chosen["LANES"] // chosen["GROUP"])
        return {"LANES": n, "TILE_N": chosen["GROUP"] // n * each}

    return change


def _of(kernel: str, **constants: int) -> Change:
    return lambda name, chosen, params: constants if name == kernel else {}


def _dense(group: int, rows_per: int, batch: int) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name != "matmul_dense" or chosen.get("SOURCE") != Source.FEW:
            return {}
        return {"GROUP": group, "TILE_N": group // chosen["LANES"] * rows_per, "BATCH": batch}

    return change


def _group(group: int) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name in STREAMED and "LANES" in chosen:
            return {"GROUP": group, "TILE_N": chosen["TILE_N"] * group // chosen["GROUP"]}
        return {"GROUP": group} if name in ("rms_norm_quantize", "glu_norm_quantize") else {}

    return change


def _apart(change: Change) -> Change:
    return lambda name, chosen, params: {"GROUPS": 0} if name == "decoder_layer" else change(name, chosen, params)


DECODES: dict[str, Change] = {
    "as it is": lambda name, chosen, params: {},
    "1 row": _of("decoder_layer", TILE_N=1),
    "batch 1": _of("decoder_layer", BATCH=1),
    "groups of 256": _of("decoder_layer", GROUP=256),
    "layers apart": _of("decoder_layer", GROUPS=0),
    "apart, groups of 512": _apart(_group(512)),
    "apart, lanes 32": _apart(_few({2560: 32, 6912: 32}, {})),
    "apart, 1 row a lane": _apart(_few({}, {3840: 1, 2560: 1, 6912: 1})),
}


def _tiles(tile_n: int, tile_t: int, group: int) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name != "matmul_ternary" or chosen.get("SOURCE") != Source.COOP:
            return {}
        return {"TILE_N": tile_n, "TILE_T": tile_t, "GROUP": group}

    return change


def _heads(tile_n: int, tile_t: int) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name != "attention" or chosen.get("SOURCE") != Source.COOP:
            return {}
        return {"TILE_N": tile_n, "TILE_T": tile_t, "GROUP": 2 * tile_n * tile_t}

    return change


PROMPTS: dict[str, Change] = {
    "as it is": lambda name, chosen, params: {},
    "tiles of 128 x 128": _tiles(128, 128, 256),
    "tiles of 128 x 64": _tiles(128, 64, 128),
    "tiles of 64 x 64": _tiles(64, 64, 128),
    "4 heads, 16 rows": _heads(4, 16),
    "2 heads, 32 rows": _heads(2, 32),
}


def by_kernel(device: VulkanDevice, dispatches: Sequence[Dispatch]) -> dict[str, tuple[int, float]]:
    """(dispatches, microseconds together) of each kernel, medians of five runs."""
    runs = []
    for _ in range(5):
        times: defaultdict[str, list[float]] = defaultdict(list)
        for dispatch, (name, took) in zip(dispatches, device.time(dispatches), strict=True):
            outs = "" if "matmul" not in name else f" {dispatch.kernel.spec.unpack(dispatch.params)['outs']}"
            times[name + outs].append(took)
        runs.append(times)
    return {name: (len(runs[0][name]), statistics.median(sum(run[name]) for run in runs) * 1e6) for name in runs[0]}


@contextmanager
def watched(device: VulkanDevice, method: str) -> Iterator[list[tuple[Any, ...]]]:
    """The arguments of every call of a device's method."""
    original, calls = getattr(device, method), []

    def watch(*arguments: Any) -> None:
        calls.append(arguments)
        original(*arguments)

    setattr(device, method, watch)
    try:
        yield calls
    finally:
        delattr(device, method)


def model(device: VulkanDevice, shape: str, context: int, *, brief: bool) -> None:
    """Prompt and decode of a model with random weights."""
    source = SyntheticSource(shape)
    before, start = device.free_memory(), time.perf_counter()
    weights = upload(source, device, 4096)
    device.synchronize()
    print(f"weights: {weights.nbytes} bytes in {time.perf_counter() - start:.2f} s")
    pool = MemoryPool(device)
    prompt = [Span(0, 0, tuple(RNG.integers(0, source.config.vocab, context).tolist()))]
    expected = None

    @contextmanager
    def running(change: Change) -> Iterator[Runner]:
        with changed(change):
            cache = KVCache(device, pool, source.config, kv_dtype="f16", blocks=64, sequences=8, context=4096)
            cache.set_table(0, list(range(64)))
            runner = Runner(device, Launcher(device), pool, weights, cache, "f16")
            yield runner
            runner.free()

    for label, change in list(DECODES.items())[: 1 if brief else None]:
        with running(change) as runner:
            runner.forward(prompt, [], context)
            taken = before - device.free_memory()
            tokens = _decode(device, runner, context, label)
            if expected is not None and not np.array_equal(tokens, expected):
                print("OTHER TOKENS")
            expected = tokens if expected is None else expected
    for label, change in list(PROMPTS.items())[: 1 if brief else None]:
        with running(change) as runner:
            _prompt(device, runner, prompt, label)
    print(f"device memory taken with weights, cache and scratch: {taken} bytes")
    weights.free(device)
    pool.close()


def _prompt(device: VulkanDevice, runner: Runner, prompt: Sequence[Span], label: str) -> None:
    """Speed and timestamps of a prompt."""
    rows = len(prompt[0].tokens)
    with watched(device, "launch") as launches:
        runner.forward(prompt, [], rows)
    took = seconds(lambda: runner.forward(prompt, [], rows), device)
    print(f"prompt of {rows}, {label}: {len(launches)} launches, {took * 1e3:.2f} ms, {rows / took:.0f} tokens/s")
    with device.record() as recording:
        for arguments in launches:
            device.launch(*arguments)
    table = by_kernel(device, recording.dispatches)
    print(f"    {sum(us for _, us in table.values()) / 1e3:.2f} ms in kernels:", _line(table))
    recording.close()


def _decode(device: VulkanDevice, runner: Runner, context: int, label: str) -> npt.NDArray[np.int32]:
    """Speed and timestamps of decoding; the tokens."""
    with watched(device, "replay") as replays:
        tokens = runner.decode_greedy([Span(0, context, (1,))], 16)
    recording = replays[-1][0]
    at = [Span(0, context + 16, (int(tokens[0, -1]),))]
    took = seconds(lambda: runner.decode_greedy(at, 32), device, 3) / 32
    start = time.perf_counter()
    for _ in range(32):
        device.replay(recording)
    host = (time.perf_counter() - start) / 32
    device.synchronize()
    table = by_kernel(device, recording.dispatches)
    print(
        f"decode at {context}, {label}: {took * 1e6:.1f} us, {1 / took:.0f} tokens/s; host {host * 1e6:.1f} us a token"
    )
    kernels = sum(us for _, us in table.values())
    print(f"    {len(recording.dispatches)} dispatches, {kernels:.1f} us in kernels:", _line(table))
    if label == "as it is":
        grouped = sorted(recording.dispatches, key=lambda dispatch: (dispatch.kernel.spec.name, dispatch.params))
        print("    the same after their like:", _line(by_kernel(device, grouped)))
    return tokens


def _line(table: Mapping[str, tuple[int, float]]) -> str:
    return "; ".join(f"{name} {n} x {us / n:.2f}" for name, (n, us) in table.items())


def memory(shape: str) -> None:
    """What a loaded model takes on the device, beside what it needs."""
    witness = VulkanDevice(0)
    free = witness.free_memory()
    other = VulkanDevice(0)
    context = free - other.free_memory()
    other.close()
    with load(SyntheticSource(shape), resolve_request("vulkan:0")) as loaded:
        measure(loaded, 0.0, 512, 16, 1, 1)
        taken, plan = free - witness.free_memory(), loaded.engine.memory_plan()
    needed = plan.weights + plan.kv_cache
    print(f"device memory: {taken} bytes; weights and KV cache {needed}, so {taken / needed - 1:.1%} more")
    print(f"    {plan}; an opened device takes {context}")
    witness.close()


def main() -> None:
    small = "small" in sys.argv  # a quick look that the script works, on any device
    brief = "brief" in sys.argv  # the model as it is tuned
    wanted = [name for name in sys.argv[1:] if name not in ("small", "brief")] or [
        "features",
        "launches",
        "products",
        "model",
        "memory",
    ]
    if "memory" in wanted:
        memory("tiny" if small else "2b4t")
    device = VulkanDevice(0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a text stream
    try:
        if "features" in wanted:
            features(device)
        if "launches" in wanted:
            launches(device)
        if "products" in wanted:
            products(device, TINY if small else SHAPES)
        if "model" in wanted:
            model(device, "tiny" if small else "2b4t", 64 if small else 512, brief=brief)
    finally:
        device.close()


if __name__ == "__main__":
    main()
