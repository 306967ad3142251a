"""Products of the same activations in a recording run side by side, and those that need each other do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_cpu.device import CpuDevice
from bitnet_hal.device import View, whole
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launch, Launcher

WIDTH, STRIDE = 512, 960
PARTS = [(0, 640, 0), (640, 320, 0), (320, 640, 1), (960 - 64, 64, 1)]
"""y_first, outs, ADD: two that fill y, then two that each add to columns of the one before."""


def filled(device: CpuDevice, values: npt.NDArray[Any]) -> View:
    view = whole(device.alloc(values.nbytes))
    device.upload(view, np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)
    return view


def products(launcher: Launcher, device: CpuDevice, y: View) -> list[Launch]:
    rng = np.random.default_rng(11)
    quantized = (rng.integers(-128, 128, (1, WIDTH), np.int8), np.full(1, 0.01, np.float32), np.full(1, 7, np.int32))
    inputs = tuple(filled(device, values) for values in quantized)
    launches = []
    for first, outs, add in PARTS:
        codes = filled(device, rng.integers(0, 256, (outs, WIDTH // 4), np.uint8))
        scales = filled(device, rng.uniform(0.5, 1, outs).astype(np.float32))
        shape = {"rows": 1, "outs": outs, "width": WIDTH, "y_stride": STRIDE, "y_first": first}
        launches.append(launcher.prepare(CATALOGUE["matmul_ternary"], shape, (codes, scales, *inputs, y), {"ADD": add}))
    return launches


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_recording_gives_what_its_launches_give(threads: int) -> None:
    device = CpuDevice(threads=threads)
    launcher = Launcher(device)
    y, out = whole(device.alloc(4 * STRIDE)), np.empty((2, STRIDE), np.float32)
    launches = products(launcher, device, y)
    for launch in launches:
        launcher.run([launch])
    device.download(y, out[0].view(np.uint8).data)
    recorded = launcher.record(launches)
    for _ in range(50):
        launcher.replay(recorded)
        device.download(y, out[1].view(np.uint8).data)
        np.testing.assert_array_equal(out[1], out[0])
