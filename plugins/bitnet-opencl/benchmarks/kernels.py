"""Time the kernels of the 2B-4T shape under many tuning constants, and what an enqueue costs.

    python kernels.py [--device opencl:0] [--only ternary]

Each line: microseconds per launch, many in a row (over distinct weights, so that no cache holds them), GB/s of weights
or tera-operations per second, whether the result equals that of the first line, kernel, shape, constants.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl
from bitnet_core.errors import GpuError
from bitnet_core.hal.device import View, whole
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_opencl.device import OpenCLDevice
from bitnet_opencl.discovery import list_devices
from bitnet_opencl.recording import Enqueuer
from spin import device_seconds

TERNARY = ((3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912))
ARENA = 192 << 20  # of weights: more than the caches of any GPU


class Bench:
    """A device with an arena of random bytes to take weights from."""

    def __init__(self, device: OpenCLDevice) -> None:
        self.device = device
        self.rng = np.random.default_rng(0)
        self.arena = device.alloc(ARENA)
        piece = self.rng.integers(0, 256, 1 << 20, dtype=np.uint8)
        for start in range(0, ARENA, piece.nbytes):
            device.upload(View(self.arena, start, piece.nbytes), memoryview(piece))

    def put(self, values: Any) -> View:
        data = np.ascontiguousarray(values)
        view = whole(self.device.alloc(data.nbytes))
        self.device.upload(view, memoryview(data).cast("B"))
        return view

    def copies(self, nbytes: int) -> list[View]:
        """Distinct weights of `nbytes` bytes."""
        step = -(-nbytes // 256) * 256
        return [View(self.arena, i * step, nbytes) for i in range(max(1, ARENA // step))]

    def time(
        self,
        name: str,
        constants: Mapping[str, int],
        params: Mapping[str, int | float],
        views: dict[str, View],
        rotating: tuple[str, list[View]] | None,
        launches: int,
    ) -> float:
        """Seconds of a launch on the device, the wait for the launch before it included."""
        spec = CATALOGUE[name]
        kernel = self.device.compile(spec, constants)
        with self.device.record() as recording:
            for i in range(launches):
                if rotating is not None:
                    views[rotating[0]] = rotating[1][i % len(rotating[1])]
                bound = [views[binding.name] for binding in spec.bindings]
                self.device.launch(kernel, spec.grid(params, constants), bound, spec.pack(params))
        seconds = device_seconds(self.device, lambda: self.device.replay(recording)) / launches
        recording.close()
        return seconds

    def result(self, view: View) -> np.ndarray[Any, Any]:
        out = np.empty(view.nbytes // 4, np.float32)
        self.device.download(view, memoryview(out).cast("B"))
        return out


def ternary_variants(rows: int, outs: int, width: int) -> Iterator[dict[str, int]]:
    if rows > 8:
        yield {"VARIANT": 1, "WG": 256, "TILE_N": 64, "TILE_T": 64}
        for tile_n, tile_t, group in (
            (128, 128, 256), (128, 128, 128), (64, 128, 128), (64, 128, 256), (128, 64, 256), (128, 64, 128),
            (64, 64, 128), (64, 64, 64), (32, 128, 128), (256, 64, 256), (256, 128, 512), (256, 128, 256),
        ):  # fmt: skip
            yield {"VARIANT": 3, "WG": group, "TILE_N": tile_n, "TILE_T": tile_t}
        return
    tile_t = 1 << (rows - 1).bit_length()
    for group, lanes, per_set in (
        (128, 8, 1), (128, 8, 2), (128, 16, 1), (128, 16, 2), (128, 32, 1), (128, 32, 2), (128, 4, 1),
        (64, 8, 1), (256, 8, 1), (256, 16, 1),
    ):  # fmt: skip
        steps = -(-(width // 64) // lanes)
        for depth in sorted({1, min(steps, 7)}):
            tile_n = group // lanes * per_set
            sizes = {"WG": group, "LANES": lanes, "TILE_N": tile_n, "TILE_T": tile_t}
            yield {"VARIANT": 0, **sizes, "WIDTH": width, "DEPTH": depth}


def line(name: str, shape: str, constants: Mapping[str, int], seconds: float, rate: str, same: bool) -> None:
    shown = " ".join(f"{key}={value}" for key, value in constants.items() if key not in ("ADD", "DTYPE", "WIDTH"))
    print(f"{seconds * 1e6:9.2f} us  {rate:>12}  {'same' if same else 'DIFFERS'}  {name} {shape} {shown}", flush=True)


def run(bench: Bench, name: str, shape: str, views: dict[str, View], params: dict[str, int | float],
        semantic: dict[str, int], variants: list[dict[str, int]], rotating: tuple[str, list[View]] | None,
        output: str, launches: int, work: tuple[float, str]) -> None:  # fmt: skip
    """All variants of one launch, the fastest last."""
    spec = CATALOGUE[name]
    lines = []
    expected: np.ndarray[Any, Any] | None = None
    for tuning in variants:
        constants = {**semantic, **tuning}
        try:
            if rotating is not None:
                views[rotating[0]] = rotating[1][0]
            kernel = bench.device.compile(spec, constants)
            bound = [views[binding.name] for binding in spec.bindings]
            bench.device.launch(kernel, spec.grid(params, constants), bound, spec.pack(params))
            found = bench.result(views[output])
            bench.device.launch(kernel, spec.grid(params, constants), bound, spec.pack(params))
            again = bench.result(views[output])
            expected = found if expected is None else expected
            close = partial(np.allclose, expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max()))
            same = bool(close(found) and close(again))
            seconds = bench.time(name, constants, params, views, rotating, launches)
        except GpuError as exc:
            print(f"failed: {name} {shape} {tuning}: {exc} {getattr(exc, 'log', '')[:300]}"[:600], flush=True)
            continue
        rate = f"{work[0] / seconds:.3g} {work[1]}"
        lines.append((seconds, constants, rate, same))
    first = lines[:1]
    for seconds, constants, rate, same in first + sorted(lines[1:], key=lambda item: item[0])[:9]:
        line(name, shape, constants, seconds, rate, same)


def ternary(bench: Bench, rows: int) -> None:
    for outs, width in TERNARY:
        q = bench.rng.integers(-127, 128, (rows, width), dtype=np.int8)
        views = {
            "wscale": bench.put(np.ones(outs, np.float32)),
            "q": bench.put(q),
            "scale": bench.put(np.full(rows, 0.01, np.float32)),
            "qsum": bench.put(q.sum(axis=1, dtype=np.int32)),
            "y": bench.put(np.zeros((rows, outs), np.float32)),
        }
        params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
        nbytes = outs * width // 4
        work = (nbytes * 1e-9, "GB/s") if rows <= 8 else (2e-12 * rows * outs * width, "TOPS")
        run(bench, "matmul_ternary", f"{rows}x{outs}x{width}", views, params, {"ADD": 0},
            list(ternary_variants(rows, outs, width)), ("w", bench.copies(nbytes)), "y",
            200 if rows <= 8 else 20, work)  # fmt: skip


def dense(bench: Bench) -> None:
    outs, width = 16032, 2560  # an eighth of the head
    views = {
        "x": bench.put(bench.rng.standard_normal(width).astype(np.float32)),
        "w": bench.put(bench.rng.standard_normal((outs, width)).astype(np.float16)),
        "y": bench.put(np.zeros(outs, np.float32)),
    }
    params = {"rows": 1, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
    variants = [
        {
            "VARIANT": 0,
            "WG": wg,
            "LANES": lanes,
            "ROWS": rows,
            "TILE_N": wg // lanes * rows,
            "TILE_T": 1,
            "WIDTH": width,
        }
        for wg in (128, 256)
        for lanes in (8, 16, 32)
        for rows in (1, 2, 4)
    ]
    copies = [views["w"]]
    run(bench, "matmul_dense", f"1x{outs}x{width}", views, params, {"DTYPE": 1}, variants, ("w", copies), "y", 50,
        (outs * width * 2e-9, "GB/s"))  # fmt: skip


HEAD = "__kernel void k("
SIGNATURES = {
    "1 buffer": "__global int *o",
    "6 buffers": ", ".join(f"__global int *{name}" for name in "oabcde"),
    "6 buffers, 6 ulong, 5 uint": ", ".join(
        [f"__global int *{name}, ulong at_{name}" for name in "oabcde"] + [f"uint u{i}" for i in range(5)]
    ),
    "6 buffers, 1 struct": ", ".join([f"__global int *{name}" for name in "oabcde"] + ["struct arguments s"]),
    "1 buffer, 1 struct": "__global int *o, struct arguments s",
}
STRUCT = "struct arguments { ulong offsets[6]; uint params[6]; };"


def enqueue(bench: Bench) -> None:
    """Host and device time of 300 dependent, nearly empty launches, by way of enqueueing and by arguments."""
    device = bench.device
    queue, count = device._queue, 300
    buffer = cl.Buffer(device._context, cl.mem_flags.READ_WRITE, 64)
    enqueuer = Enqueuer(queue)
    for label, signature in SIGNATURES.items():
        body = "{ if (get_global_id(0) == 0) o[0] += 1; }"
        program = cl.Program(device._context, f"{STRUCT}\n{HEAD}{signature}) {body}").build()
        kernels = [cl.Kernel(program, "k") for _ in range(count)]
        for kernel in kernels:
            for index, argument in enumerate(signature.split(",")):
                if "*" in argument:
                    kernel.set_arg(index, buffer)
                else:
                    kernel.set_arg(index, bytes(72 if "struct" in argument else 8 if "ulong" in argument else 4))
        items, group = (128 * 132, 1, 1), (128, 1, 1)
        direct = [enqueuer.prepare(kernel, items, group) for kernel in kernels]
        ways = {
            "pyopencl": [partial(cl.enqueue_nd_range_kernel, queue, kernel, items, group) for kernel in kernels],
            "direct": direct,
        }
        for way, calls in ways.items():
            best = (1e9, 1e9)
            for _ in range(20):
                queue.finish()
                start = time.perf_counter()
                for call in calls:
                    call()
                queue.flush()
                host = time.perf_counter() - start
                queue.finish()
                best = min(best, ((time.perf_counter() - start) / count * 1e6, host / count * 1e6))
            if way == "direct":  # the last one
                alone = device_seconds(device, lambda calls=calls: [call() for call in calls]) / count * 1e6
                print(f"on the device alone {alone:.2f} us", end="; ")
            print(f"enqueue by {way:8} host {best[1]:.2f} us, with device {best[0]:.2f} us; {label}", flush=True)


def argmax(bench: Bench) -> None:
    vocab = 128256
    views = {
        "logits": bench.put(bench.rng.standard_normal(vocab).astype(np.float32)),
        "index": bench.put(np.zeros(1, np.int32)),
        "tables": bench.put(np.zeros(8, np.int32)),
        "step": bench.put(np.zeros(4, np.int32)),
        "history": bench.put(np.zeros(65, np.int32)),
    }
    params: dict[str, int | float] = {"rows": 1, "vocab": vocab, "max_blocks": 8, "ring": 64}
    variants = [{"VARIANT": 0, "WG": 1024}]
    for splits in (32, 63, 126, 252):
        variants.append({"VARIANT": 4, "WG": 256, "SPLITS": splits, "PARTS": 4 + 8 * splits})
    run(bench, "argmax_advance", f"1x{vocab}", views, params, {}, variants, None, "step", 50, (0, ""))


def rows(bench: Bench) -> None:
    """The kernels that work on whole rows."""
    put, rng = bench.put, bench.rng
    for width in (2560, 6912):
        views = {
            "x": put(rng.standard_normal(width).astype(np.float32)),
            "gate_up": put(rng.standard_normal(2 * width).astype(np.float32)),
            "gamma": put(np.ones(width, np.float32)),
            "q": put(np.zeros(width, np.int8)),
            "scale": put(np.zeros(1, np.float32)),
            "qsum": put(np.zeros(1, np.int32)),
        }
        params: dict[str, int | float] = {"rows": 1, "width": width, "stride": width, "eps": 1e-5}
        variants = [{"VARIANT": 0, "WG": wg, "SHARE": -(-width // wg)} for wg in (256, 320, 512, 640, 768, 1024)]
        name, semantic = ("rms_norm_quantize", {"NORM": 1}) if width == 2560 else (
            "glu_norm_quantize", {"ACT": 0, "NORM": 1})  # fmt: skip
        run(bench, name, f"1x{width}", views, params, semantic, variants, None, "scale", 50, (0, ""))


def split_variants(rows: int, n_kv: int, heads: int = 4) -> Iterator[dict[str, int]]:
    for group in (64, 128, 256):
        for keys in (1, 2, 4):
            for splits in (1,) if rows > 8 else (8, 16, 26, 32):
                parts = 16 * (rows * n_kv + rows * n_kv * splits * heads * 33)
                team = {"VARIANT": 4, "WG": group, "LANES": 16, "HEAD_DIM": 128, "KEYS": keys, "HEADS": heads}
                if (group == 128) + (keys == 2) + (splits in (1, 26)) >= 2:
                    shared = {"SPLITS": splits, "GROUPS": rows * n_kv, "PARTS": parts}
                    yield {**team, **shared, "TILE_N": heads, "TILE_T": 1}


def joined(bench: Bench) -> None:
    """The kernels that do the work of several, for one row."""
    put, rng = bench.put, bench.rng
    for name, outs, width in (
        ("norm_matmul", 3840, 2560), ("norm_matmul", 2560, 2560), ("norm_matmul", 2560, 6912),
        ("norm_matmul_glu", 6912, 2560),
    ):  # fmt: skip
        wide = outs * (2 if name == "norm_matmul_glu" else 1)
        views = {
            "x": put(rng.standard_normal(width).astype(np.float32)),
            "gamma": put(np.ones(width, np.float32)),
            "wscale": put(np.ones(wide, np.float32)),
            "y": put(np.zeros(outs, np.float32)),
        }
        views["m"] = views["y"]
        params: dict[str, int | float] = {"rows": 1, "columns": width, "outs": outs, "width": width, "eps": 1e-5}
        semantic = {"NORM": 1, "ACT": 0}
        if name == "norm_matmul":
            params |= {"y_stride": outs, "y_first": 0}
            semantic = {"NORM": 1, "ADD": 0}
        variants = []
        for group in (128, 256, 512):
            for lanes in (4, 8, 16, 32):
                for per_set in (1, 2):
                    if -(-(width // 64) // lanes) * per_set * (wide // outs) <= 20:
                        tile = {"TILE_N": group // lanes * per_set, "TILE_T": 1, "COLUMNS": width, "WIDTH": width}
                        variants.append({"VARIANT": 0, "WG": group, "LANES": lanes, **tile})
        nbytes = wide * width // 4
        run(bench, name, f"1x{outs}x{width}", views, params, semantic, variants, ("w", bench.copies(nbytes)),
            "y", 100, (nbytes * 1e-9, "GB/s"))  # fmt: skip
    heads, n_kv, head_dim, blocks = 20, 5, 128, 33
    for position in (191, 575, 2047):
        views = {
            "qkv": put(rng.standard_normal((heads + 2 * n_kv) * head_dim).astype(np.float32)),
            "rope": put(rng.standard_normal((blocks * 64, head_dim)).astype(np.float32)),
            "k_cache": put(rng.standard_normal((blocks * 64 * n_kv, head_dim)).astype(np.float16)),
            "v_cache": put(rng.standard_normal((blocks * 64 * n_kv, head_dim)).astype(np.float16)),
            "step": put(np.array([0, position, position, 0], np.int32)),
            "tables": put(np.arange(blocks, dtype=np.int32)),
            "out": put(np.zeros(heads * head_dim, np.float32)),
        }
        params = {
            "rows": 1, "n_heads": heads, "n_kv_heads": n_kv, "head_dim": head_dim, "row_bytes": 2 * head_dim,
            "max_blocks": blocks, "scale": head_dim**-0.5,
        }  # fmt: skip
        variants = [{**v, "VARIANT": 0} for most in (4, 2) for v in split_variants(1, heads // most, most)]
        run(bench, "rope_attention", f"1 at {position}", views, params, {"KV": 1, "INTERLEAVED": 0}, variants, None,
            "out", 100, (0, ""))  # fmt: skip


def attention(bench: Bench) -> None:
    heads, n_kv, head_dim, blocks = 20, 5, 128, 33
    for count, position in ((1, 191), (1, 575), (1, 2047), (8, 575), (512, None)):
        step = np.zeros((count, 4), np.int32)
        step[:, 1] = np.arange(count) if position is None else position
        views = {
            "q": bench.put(bench.rng.standard_normal((count, heads * head_dim)).astype(np.float32)),
            "k_cache": bench.put(bench.rng.standard_normal((blocks * 64 * n_kv, head_dim)).astype(np.float16)),
            "v_cache": bench.put(bench.rng.standard_normal((blocks * 64 * n_kv, head_dim)).astype(np.float16)),
            "step": bench.put(step),
            "tables": bench.put(np.arange(blocks, dtype=np.int32)),
            "out": bench.put(np.zeros((count, heads * head_dim), np.float32)),
        }
        params: dict[str, int | float] = {
            "rows": count, "n_heads": heads, "n_kv_heads": n_kv, "head_dim": head_dim, "row_bytes": 2 * head_dim,
            "max_blocks": blocks, "scale": head_dim**-0.5,
        }  # fmt: skip
        old = {"VARIANT": 0, "WG": 256, "LANES": 8, "CHUNK": 256, "SPREAD": 128, "OWNED": 1, "TILE_N": 1, "TILE_T": 1}
        variants = [old]
        variants += list(split_variants(count, n_kv))
        run(bench, "attention", f"{count} at {position}", views, params, {"KV": 1}, variants, None, "out",
            20 if count < 9 else 4, (0, ""))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0, help="index among the OpenCL devices")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for listed, info in list_devices():
        print(info.index, info.name, info.type, info.driver, dict(info.extra))
        if info.index == options.device:
            chosen = OpenCLDevice(listed, info)
            print(listed.version, listed.opencl_c_version, listed.extensions)
            print("options", chosen._abilities, "profile", chosen.profile, "local", listed.local_mem_size)
    bench = Bench(chosen)
    steps: dict[str, Any] = {
        "enqueue": lambda: enqueue(bench),
        "rows": lambda: rows(bench),
        "joined": lambda: joined(bench),
        "attention": lambda: attention(bench),
        "argmax": lambda: argmax(bench),
        "prefill": lambda: ternary(bench, 512),
        "dense": lambda: dense(bench),
        "decode": lambda: ternary(bench, 1),
        "batch": lambda: ternary(bench, 8),
    }
    for name, step in steps.items():
        if options.only in name:
            start = time.perf_counter()
            step()
            print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
