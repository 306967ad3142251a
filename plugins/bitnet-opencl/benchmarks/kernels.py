"""Time the kernels of the 2B-4T shape under many tuning constants, and what an enqueue costs.

    python kernels.py [--device opencl:0] [--only ternary]

Each line: kernel, shape, constants, microseconds per launch (least of the repeats; many launches in a row over distinct
weights, so that no cache holds them), GB/s of weights or tera-operations per second, and whether the result equals that
of the first line of the same shape.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyopencl as cl
from bitnet_core.errors import GpuError
from bitnet_core.hal.device import View, whole
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_opencl.device import OpenCLDevice
from bitnet_opencl.discovery import list_devices

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
        """Least seconds per launch of three rounds."""
        spec = CATALOGUE[name]
        kernel = self.device.compile(spec, constants)
        with self.device.record() as recording:
            for i in range(launches):
                if rotating is not None:
                    views[rotating[0]] = rotating[1][i % len(rotating[1])]
                bound = [views[binding.name] for binding in spec.bindings]
                self.device.launch(kernel, spec.grid(params, constants), bound, spec.pack(params))
        best = 1e9
        for _ in range(4):
            start = time.perf_counter()
            self.device.replay(recording)
            self.device.synchronize()
            best = min(best, (time.perf_counter() - start) / launches)
        recording.close()
        return best

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
            expected = found if expected is None else expected
            same = bool(np.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max())))
            seconds = bench.time(name, constants, params, views, rotating, launches)
        except GpuError as exc:
            print(f"failed: {name} {shape} {tuning}: {exc} {getattr(exc, 'log', '')[:600]}", flush=True)
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


def enqueue(bench: Bench) -> None:
    """Host and device time of 300 dependent, nearly empty launches, by several ways to enqueue them."""
    device = bench.device
    queue, count = device._queue, 300
    program = cl.Program(device._context, "__kernel void k(__global int *o) { if (get_global_id(0) == 0) o[0] += 1; }")
    program.build()
    buffer = cl.Buffer(device._context, cl.mem_flags.READ_WRITE, 64)
    kernels = [cl.Kernel(program, "k") for _ in range(count)]
    for kernel in kernels:
        kernel.set_arg(0, buffer)
    size = ctypes.c_size_t * 3
    items, group = size(128 * 132, 1, 1), size(128, 1, 1)
    null, three, zero = ctypes.c_void_p(), ctypes.c_uint(3), ctypes.c_uint(0)
    handles = [ctypes.c_void_p(kernel.int_ptr) for kernel in kernels]
    raw_queue = ctypes.c_void_p(queue.int_ptr)

    def by_pyopencl() -> None:
        for kernel in kernels:
            cl.enqueue_nd_range_kernel(queue, kernel, (128 * 132, 1, 1), (128, 1, 1))

    ways: dict[str, Any] = {"pyopencl": by_pyopencl}
    for label, kind in (("ctypes CDLL", ctypes.CDLL), ("ctypes PyDLL", ctypes.PyDLL)):
        try:
            function = kind(cl._cl.__file__).clEnqueueNDRangeKernel
        except (OSError, AttributeError) as exc:
            print(f"{label}: {exc}")
            continue

        def by_ctypes(function: Any = function) -> None:
            for handle in handles:
                function(raw_queue, handle, three, null, items, group, zero, null, null)

        ways[label] = by_ctypes
        calls = [(raw_queue, handle, three, null, items, group, zero, null, null) for handle in handles]

        def by_calls(function: Any = function, calls: Any = calls) -> None:
            for call in calls:
                function(*call)

        ways[label + " prepared"] = by_calls
    try:
        import cffi

        ffi = cffi.FFI()
        ffi.cdef("int clEnqueueNDRangeKernel(void*, void*, unsigned, void*, size_t*, size_t*, unsigned, void*, void*);")
        library = ffi.dlopen(cl._cl.__file__)
        function = library.clEnqueueNDRangeKernel
        c_queue, c_items, c_group = (
            ffi.cast("void*", queue.int_ptr),
            ffi.new("size_t[3]", [128 * 132, 1, 1]),
            ffi.new("size_t[3]", [128, 1, 1]),
        )
        c_kernels = [ffi.cast("void*", kernel.int_ptr) for kernel in kernels]

        def by_cffi() -> None:
            for kernel in c_kernels:
                function(c_queue, kernel, 3, ffi.NULL, c_items, c_group, 0, ffi.NULL, ffi.NULL)

        ways["cffi"] = by_cffi
    except Exception as exc:
        print(f"cffi: {exc}")
    for label, way in ways.items():
        best = (1e9, 1e9)
        for _ in range(20):
            queue.finish()
            start = time.perf_counter()
            way()
            queue.flush()
            host = time.perf_counter() - start
            queue.finish()
            best = min(best, (time.perf_counter() - start, host))
        print(
            f"enqueue by {label}: host {best[1] / count * 1e6:.2f} us, host and device {best[0] / count * 1e6:.2f} us"
        )


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
