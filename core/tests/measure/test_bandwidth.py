"""The read bandwidth of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from bitnet_core.measure import bandwidth
from bitnet_hal.device import DeviceType, Kernel, View
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.kernels.types import Grid
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice


@pytest.mark.parametrize("limits", [{}, {"max_binding": 1 << 20}, {"max_allocation": 0, "max_binding": 0}])
def test_bandwidth_of_a_gpu_is_what_a_product_reads(monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]) -> None:
    monkeypatch.setattr(bandwidth, "_TABLE_BYTES", 2 << 20)
    device = NumpyDevice(replace(numpy_info(), type=DeviceType.GPU, **limits))
    sizes, read = [], []
    alloc, launch = device.alloc, device.launch

    def counted(kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        assert kernel.spec.name == "matmul_dense"
        read.append(views[1].nbytes)
        launch(kernel, grid, views, params)

    def seconds(action: Callable[[], None], _: float) -> float:
        action()
        return 0.02

    monkeypatch.setattr(device, "alloc", lambda nbytes: sizes.append(nbytes) or alloc(nbytes))
    monkeypatch.setattr(device, "launch", counted)
    monkeypatch.setattr(bandwidth, "_best_seconds", seconds)
    measured = bandwidth.read_bandwidth(device)
    assert max(sizes) == (limits.get("max_binding") or 2 << 20)
    assert measured == pytest.approx(2 * 4 * max(read) / 0.02)  # two replays of four launches, the largest table
    assert not device._buffers


def test_a_slow_device_is_not_measured_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that reads 1 GB/s and calls itself a GPU: small tables, and no more than one after the limit."""
    device, now, said = NumpyDevice(replace(numpy_info(), type=DeviceType.GPU)), [0.0], []

    class Clock:
        perf_counter = staticmethod(lambda: now[0])

    def launch(kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        launches.append(views[1].nbytes)

    def replay(_: Any) -> None:
        now[0] += sum(launches[-4:]) / 1e9

    launches: list[int] = []
    for name, instead in (("launch", launch), ("replay", replay), ("free_memory", lambda: 1 << 40)):
        monkeypatch.setattr(device, name, instead)
    monkeypatch.setattr(bandwidth, "time", Clock)
    monkeypatch.setattr(bandwidth, "_fill", lambda *_: None)
    assert bandwidth.read_bandwidth(device, lambda *step: said.append(step)) == pytest.approx(1e9)
    assert now[0] < 25
    assert max(launches) <= 250e6
    assert said[-1] == ("measuring memory bandwidth", 3, 3)


def test_bandwidth_with_little_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not tell how much is free: smaller tables are tried, down to the least."""
    monkeypatch.setattr(bandwidth, "_TABLE_BYTES", 2 << 20)
    device = NumpyDevice(replace(numpy_info(), type=DeviceType.GPU))
    alloc, room, sizes = device.alloc, 600 << 10, []

    def scarce(nbytes: int) -> Any:
        if nbytes > room:
            raise OutOfMemoryError("full", requested=nbytes, free=-1)
        sizes.append(nbytes)
        return alloc(nbytes)

    monkeypatch.setattr(device, "alloc", scarce)
    with pytest.raises(OutOfMemoryError):
        bandwidth.read_bandwidth(device)
    monkeypatch.setattr(bandwidth, "_LEAST_BYTES", 256 << 10)
    assert bandwidth.read_bandwidth(device) > 0
    assert max(sizes) == 512 << 10
    assert not device._buffers


@pytest.mark.parametrize("change", [{"type": DeviceType.SOFTWARE}, {"type": DeviceType.GPU, "fake": True}])
def test_bandwidth_of_what_computes_on_the_host_is_the_hosts(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(bandwidth, "_host_bandwidth", lambda threads: 1e9 if threads > 0 else 0)
    assert bandwidth.read_bandwidth(NumpyDevice(replace(numpy_info(), **change))) == 1e9
