"""Check and time every kernel of a decode step of the 2B-4T shape on one GPU, with --variants other tunings too.

    pip install bitnet-core[test] bitnet-cuda
    python decode.py [--device 0] [--rows 1,8] [--only KERNEL,...] [--variants] [--json FILE]

Each kernel is launched 30 times in one CUDA graph, every launch with weights (or caches) of its own so that they come
from memory as they do in a model of 30 layers. A variant whose result differs from the numpy meaning is marked WRONG
and not timed. The table comes last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bitnet_core.hal.device import Buffer, View, whole
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.testing.cases.case import Case, expected
from bitnet_core.testing.compare import check_outputs
from bitnet_cuda.device import CudaDevice
from decode_cases import Step, steps
from variants import variants

LAYERS = 30
REPLAYS = 10
REPEAT = 5


class Operands:
    """A step's arrays on the device; cold ones LAYERS times."""

    def __init__(self, device: CudaDevice, step: Step) -> None:
        self._device, self._step = device, step
        self.launch = Case(step.kernel, step.label, lambda rng: step.launch).launch()
        self._buffers: list[Buffer] = []
        self._first = {name: self._put(array) for name, array in self.launch.arrays.items()}
        size = sum(self.launch.arrays[name].nbytes for name in step.cold)
        self.copies = LAYERS if size < 100 << 20 else 1
        self._more: list[dict[str, View]] = []
        for _ in range(self.copies - 1):
            self._more.append({name: self._copy(self._first[name]) for name in step.cold})

    def _put(self, array: np.ndarray[Any, Any]) -> View:
        buffer = self._device.alloc(max(1, array.nbytes))
        self._buffers.append(buffer)
        self._device.upload(whole(buffer), array.view(np.uint8).data)
        return whole(buffer)

    def _copy(self, view: View) -> View:
        buffer = self._device.alloc(view.nbytes)
        self._buffers.append(buffer)
        self._device.copy(view, whole(buffer))
        return whole(buffer)

    def views(self, copy: int) -> list[View]:
        """The bindings of one launch."""
        own = self._first if copy == 0 else self._first | self._more[copy - 1]
        return [own[binding.name] for binding in CATALOGUE[self._step.kernel].bindings]

    def restore(self) -> None:
        """Undo what launches wrote."""
        for name, array in self.launch.arrays.items():
            if self._step.kernel != "matmul_dense" or name != "w":
                self._device.upload(self._first[name], array.view(np.uint8).data)

    def read(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every array as it is now."""
        result = {}
        for name, array in self.launch.arrays.items():
            result[name] = np.empty_like(array)
            self._device.download(self._first[name], result[name].view(np.uint8).data)
        return result

    def free(self) -> None:
        for buffer in self._buffers:
            self._device.free(buffer)


def measure(device: CudaDevice, operands: Operands, step: Step, tuning: Mapping[str, int], want: Any) -> float | str:
    """Microseconds of one launch, or why there is no figure."""
    spec, launch = CATALOGUE[step.kernel], operands.launch
    try:
        kernel = device.compile(spec, {**launch.constants, **tuning})
        grid, params = spec.grid(launch.params, tuning), spec.pack(launch.params)
        operands.restore()
        device.launch(kernel, grid, operands.views(0), params)
        check_outputs(Case(step.kernel, step.label, lambda rng: step.launch), launch, want, operands.read())
    except AssertionError as exc:
        return f"WRONG: {str(exc)[:300]}"
    with device.record() as recording:
        for copy in range(LAYERS if operands.copies > 1 else 4):
            device.launch(kernel, grid, operands.views(copy if operands.copies > 1 else 0), params)
    launches = REPLAYS * (LAYERS if operands.copies > 1 else 4)
    times = []
    for _ in range(REPEAT + 1):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(REPLAYS):
            device.replay(recording)
        device.synchronize()
        times.append((time.perf_counter() - start) / launches)
    recording.close()
    return statistics.median(times[1:]) * 1e6


def run(device: CudaDevice, rows: int, only: Sequence[str], others: bool) -> list[dict[str, Any]]:
    """A line per kernel and variant."""
    lines = []
    for step in steps(rows):
        if only and step.kernel not in only:
            continue
        operands = Operands(device, step)
        want = expected(CATALOGUE[step.kernel], operands.launch)
        default = device.tuning(CATALOGUE[step.kernel], operands.launch.constants, operands.launch.params)
        width = int(operands.launch.params.get("width", 0))
        for tuning in [default, *(variants(step.kernel, width, default) if others else ())]:
            us = measure(device, operands, step, tuning, want)
            line: dict[str, Any] = {"kernel": step.kernel, "label": step.label, "rows": rows, "tuning": dict(tuning)}
            line |= {"us": us, "gb_s": step.nbytes / us / 1e3 if isinstance(us, float) else None}
            lines.append(line)
            print(line, flush=True)
        operands.free()
    return lines


def main() -> int:
    """0 if every kernel is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--only", default="", help="kernel names, separated by commas")
    parser.add_argument("--variants", action="store_true", help="also time other tunings")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    device = CudaDevice(arguments.device)
    for rows in map(int, arguments.rows.split(",")):
        lines += run(device, rows, [name for name in arguments.only.split(",") if name], arguments.variants)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": device.info.name, "driver": device.info.driver, "lines": lines}, file, indent=1)
    print(f"\n{device.info.name}, {device.info.driver}")
    for line in lines:
        us = line["us"]
        figures = f"{us:9.2f} us {line['gb_s']:7.0f} GB/s" if isinstance(us, float) else us
        tuning = " ".join(f"{name}={value}" for name, value in line["tuning"].items())
        print(f"{line['kernel']:20} {line['label']:8} rows {line['rows']}  {figures}  {tuning}")
    return int(any(not isinstance(line["us"], float) for line in lines))


if __name__ == "__main__":
    sys.exit(main())
