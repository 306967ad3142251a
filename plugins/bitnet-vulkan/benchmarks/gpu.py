"""Look at a Vulkan device and time the backend's kernels on it, many ways to tune them side by side.

    pip install bitnet-core[test] bitnet-vulkan
    python gpu.py [features] [launches] [products] [model]     (all of them without a name)

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
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.runner import Runner, Span
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.hal import Buffer, whole
from bitnet_core.hal.pool import MemoryPool
from bitnet_core.kernels.catalogue import MATMUL_TERNARY, RMS_NORM_QUANTIZE
from bitnet_core.model.launch import Launcher
from bitnet_core.model.upload import upload
from bitnet_vulkan import tuning
from bitnet_vulkan.binding import Handle, ffi, lib, make
from bitnet_vulkan.device import VulkanDevice, VulkanRecording
from bitnet_vulkan.features import matrix_shapes
from bitnet_vulkan.fusion import Launch
from bitnet_vulkan.pipelines import Source

RNG = np.random.default_rng(0)
SHAPES = {"qkv": (3840, 2560), "o": (2560, 2560), "gate_up": (13824, 2560), "down": (2560, 6912)}
TINY = {"small": (72, 384)}
Constants = dict[str, int]


def put(device: VulkanDevice, array: npt.NDArray[Any]) -> Buffer:
    """A buffer with these contents."""
    buffer = device.alloc(array.nbytes)
    device.upload(whole(buffer), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return buffer


def seconds(action: Callable[[], object], device: VulkanDevice, runs: int = 5) -> float:
    """Median time of an action and of what it queues, once the device is awake."""
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


def product_variants(device: VulkanDevice, rows: int, outs: int, width: int) -> Iterator[Constants]:
    """Tunings of matmul_ternary."""
    if device._physical.features.subgroups and rows <= 8:
        for group in (128, 256):
            for lanes in (8, 16, 32):
                for rows_per in (1, 2):
                    if (
                        lanes > device._physical.features.subgroups
                        or (width // 64 + lanes - 1) // lanes * rows_per > 24
                    ):
                        continue
                    yield {
                        "SOURCE": Source.FEW,
                        "GROUP": group,
                        "TILE_N": group // lanes * rows_per,
                        "TILE_T": rows,
                        "WIDTH": width,
                        "LANES": lanes,
                    }
    elif rows <= 8:
        yield {"GROUP": 128, "TILE_N": 8, "TILE_T": rows}
    else:
        yield {"SOURCE": Source.TILED, "GROUP": 256, "TILE_N": 64, "TILE_T": 64}
        if device._physical.features.matrix:
            for n, t, group, wave_t in MATRIX_TILES:
                yield {"SOURCE": Source.COOP, "GROUP": group, "TILE_N": n, "TILE_T": t, "WAVE_T": wave_t}


MATRIX_TILES = (
    *((128, 128, 256, 32), (128, 128, 256, 64), (128, 128, 128, 64), (64, 64, 128, 32), (128, 64, 128, 32)),
    *(
        (128, 64, 128, 64),
        (64, 128, 128, 64),
        (64, 128, 128, 32),
        (64, 64, 64, 32),
        (64, 32, 64, 32),
        (128, 64, 256, 32),
    ),
)
"""TILE_N, TILE_T, GROUP, WAVE_T."""


def products(device: VulkanDevice, shapes: Mapping[str, tuple[int, int]]) -> None:
    """Every tuning of every shape; the fastest ones last."""
    for label, (outs, width) in shapes.items():
        codes = RNG.integers(0, 3, (outs, width // 128, 4, 32)).astype(np.uint8)
        packed = codes[:, :, 0] << 6 | codes[:, :, 1] << 4 | codes[:, :, 2] << 2 | codes[:, :, 3]
        weights = [put(device, packed) for _ in range(30)]  # more than the caches hold
        for rows in (1, 8, 512):
            q = RNG.integers(-128, 128, (rows, width)).astype(np.int8)
            scales = RNG.random(rows).astype(np.float32), RNG.random(outs).astype(np.float32)
            sums = q.astype(np.float64) @ (codes.reshape(outs, width).astype(np.float64) - 1).T
            expected = sums.astype(np.float32) * scales[0][:, None] * scales[1]
            others = [put(device, a) for a in (scales[1], q, scales[0], q.sum(1, dtype=np.int32))]
            y = device.alloc(4 * rows * outs)
            params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
            found = []
            for constants in product_variants(device, rows, outs, width):
                each = _product(device, constants, params, [weights, others, y], expected)
                found.append((each, constants))
            found.sort(key=lambda item: item[0])
            for each, constants in reversed(found[:8] if rows <= 8 else found):
                text = " ".join(f"{name} {int(value)}" for name, value in constants.items())
                speed = outs * width / 4 / each / 1e9, 2 * outs * width * rows / each / 1e12
                print(
                    f"{label:8s} rows {rows:3d} {each * 1e6:8.2f} us {speed[0]:6.0f} GB/s {speed[1]:6.1f} TOPS  {text}"
                )
            for buffer in (*others, y):
                device.free(buffer)
        for buffer in weights:
            device.free(buffer)


def _product(
    device: VulkanDevice,
    constants: Constants,
    params: Mapping[str, int],
    operands: Sequence[Any],
    expected: npt.NDArray[np.float32],
) -> float:
    """Seconds of one launch among others, over weights that are not in a cache; infinity if it is wrong."""
    weights, others, y = operands
    kernel = device.compile(MATMUL_TERNARY, {"ADD": 0, **constants})
    grid = MATMUL_TERNARY.grid(params, constants)
    count = 120 if params["rows"] <= 8 else 10
    with device.record() as recording:
        for i in range(count):
            views = [whole(b) for b in (weights[i % len(weights)], *others, y)]
            device.launch(kernel, grid, views, MATMUL_TERNARY.pack(params))
    each = seconds(lambda: device.replay(recording), device) / count
    recording.close()
    out = np.empty_like(expected)
    device.download(whole(y), out.reshape(-1).view(np.uint8).data)
    if not np.array_equal(out, expected):
        print("WRONG:", constants, float(np.abs(out - expected).max()))
        return float("inf")
    return each


Change = Callable[[str, Constants, Mapping[str, int | float]], Constants]


@contextmanager
def changed(change: Change) -> Iterator[None]:
    """Another tuning for a while."""
    original = tuning.choose

    def choose(physical: Any, spec: Any, constants: Any, params: Any) -> Constants:
        chosen = original(physical, spec, constants, params)
        return {**chosen, **change(spec.name, chosen, params)}

    tuning.choose = choose
    try:
        yield
    finally:
        tuning.choose = original


def _few(lanes: Mapping[int, int], rows_per: Mapping[int, int]) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name != "matmul_ternary" or chosen.get("SOURCE") != Source.FEW:
            return {}
        n = lanes.get(int(params["width"]), chosen["LANES"])
        each = rows_per.get(int(params["outs"]), chosen["TILE_N"] * chosen["LANES"] // chosen["GROUP"])
        return {"LANES": n, "TILE_N": chosen["GROUP"] // n * each}

    return change


def _of(kernel: str, **constants: int) -> Change:
    return lambda name, chosen, params: constants if name == kernel and "SOURCE" in chosen else {}


def _dense(group: int, rows_per: int, batch: int) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name != "matmul_dense" or chosen.get("SOURCE") != Source.FEW:
            return {}
        return {"GROUP": group, "TILE_N": group // chosen["LANES"] * rows_per, "BATCH": batch}

    return change


def _argmax(group: int, batch: int) -> Change:
    return lambda name, chosen, params: {"GROUP": group, "BATCH": batch} if name == "argmax_advance" else {}


def _group(group: int) -> Change:
    def change(name: str, chosen: Constants, params: Mapping[str, int | float]) -> Constants:
        if name == "matmul_ternary" and chosen.get("SOURCE") == Source.FEW:
            return {"GROUP": group, "TILE_N": chosen["TILE_N"] * group // chosen["GROUP"]}
        return {"GROUP": group} if name in ("rms_norm_quantize", "glu_norm_quantize") else {}

    return change


DECODES: dict[str, Change] = {
    "as it is": lambda name, chosen, params: {},
    "not fused": lambda name, chosen, params: {"GROUP": 512} if name.endswith("norm_quantize") else {},
    "groups of 128": _group(128),
    "groups of 512": _group(512),
    "lanes 16, 2 and 4 rows": _few({2560: 16}, {3840: 2, 2560: 2, 13824: 4}),
    "lanes 32, 2 and 4 rows": _few({2560: 32, 6912: 32}, {3840: 2, 2560: 2, 13824: 4}),
    "splits 8": _of("attention", SPLITS=8),
    "splits 32": _of("attention", SPLITS=32),
    "batch 4": _of("attention", BATCH=4),
    "splits 32, batch 4": _of("attention", SPLITS=32, BATCH=4),
    "dense 128 16 1": _dense(128, 16, 1),
    "argmax 512 32": _argmax(512, 32),
}


def by_kernel(device: VulkanDevice, recording: VulkanRecording) -> dict[str, tuple[int, float]]:
    """(dispatches, microseconds together) of each kernel, medians of five runs."""
    runs = []
    for _ in range(5):
        times: defaultdict[str, list[float]] = defaultdict(list)
        for dispatch, (name, took) in zip(recording.dispatches, device.time(recording.dispatches), strict=True):
            outs = "" if not name.startswith("matmul") else f" {dispatch.kernel.spec.unpack(dispatch.params)['outs']}"
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
    weights = upload(source, device, 4096)
    pool = MemoryPool(device)
    prompt = [Span(0, 0, tuple(RNG.integers(0, source.config.vocab, context).tolist()))]
    expected = None
    for label, change in list(DECODES.items())[: 1 if brief else None]:
        with changed(change):
            cache = KVCache(device, pool, source.config, kv_dtype="f16", blocks=64, sequences=8, context=4096)
            cache.set_table(0, list(range(64)))
            runner = Runner(device, Launcher(device), pool, weights, cache, "f16")
            if expected is None:
                _prompt(device, runner, prompt)
            runner.forward(prompt, [], context)
            tokens = _decode(device, runner, context, label)
            if expected is not None and not np.array_equal(tokens, expected):
                print("OTHER TOKENS")
            expected = tokens if expected is None else expected
            runner.free()
    weights.free(device)
    pool.close()


def _prompt(device: VulkanDevice, runner: Runner, prompt: Sequence[Span]) -> None:
    """Speed and timestamps of a prompt."""
    rows = len(prompt[0].tokens)
    with watched(device, "launch") as launches:
        runner.forward(prompt, [], rows)
    took = seconds(lambda: runner.forward(prompt, [], rows), device)
    print(f"prompt of {rows}: {len(launches)} launches, {took * 1e3:.2f} ms, {rows / took:.0f} tokens/s")
    with device.record() as recording:
        for arguments in launches:
            device.launch(*arguments)
    table = by_kernel(device, recording)
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
    table = by_kernel(device, recording)
    print(
        f"decode at {context}, {label}: {took * 1e6:.1f} us, {1 / took:.0f} tokens/s; host {host * 1e6:.1f} us a token"
    )
    kernels = sum(us for _, us in table.values())
    print(f"    {len(recording.dispatches)} dispatches, {kernels:.1f} us in kernels:", _line(table))
    return tokens


def _line(table: Mapping[str, tuple[int, float]]) -> str:
    return "; ".join(f"{name} {n} x {us / n:.2f}" for name, (n, us) in table.items())


def main() -> None:
    small = "small" in sys.argv  # a quick look that the script works, on any device
    brief = "brief" in sys.argv  # the model as it is tuned
    wanted = [name for name in sys.argv[1:] if name not in ("small", "brief")] or [
        "features",
        "launches",
        "products",
        "model",
    ]
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
