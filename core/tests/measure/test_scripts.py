"""The scripts that measure several devices."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from bitnet_core.measure.replicas import possible_sum, processor_of
from bitnet_hal.device import DeviceInfo, DeviceType

FOLDER = Path(__file__).parents[3] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_offload_prints_a_row_for_each_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    offload = script("offload")
    monkeypatch.setattr(offload, "read_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(offload, "_UPLOAD_BYTES", 1 << 20)
    options = "-d cuda --synthetic bonsai2-tiny --memory 2M 1K -p 16 -n 4 --repeat 1"
    monkeypatch.setattr(sys, "argv", ["offload.py", *options.split()])
    offload.main()
    bandwidths, head, whole, part, none = capsys.readouterr().out.splitlines()
    assert bandwidths.startswith("device 1.0 GB/s, link ")
    assert head.split()[:3] == ["memory", "taken", "layers"]
    assert "cuda:0 4 " in whole
    assert part.split()[:2] == ["2.0", "MiB"]
    assert ", cuda:0 " in part  # the CPU has the layers before
    assert "1.0 KiB out of memory" in none


def test_a_processor_counts_once() -> None:
    cuda = DeviceInfo("cuda", 0, "card", DeviceType.GPU, physical_id="0000:03:00.0")
    vulkan = DeviceInfo("vulkan", 1, "card", DeviceType.GPU, physical_id="0000:03:00.0")
    unknown = DeviceInfo("webgpu", 0, "card", DeviceType.INTEGRATED)
    cpu = DeviceInfo("cpu", 0, "chip", DeviceType.CPU)
    pocl = DeviceInfo("opencl", 0, "chip", DeviceType.SOFTWARE, physical_id="a uuid")
    processors = [processor_of(info) for info in (cuda, vulkan, unknown, cpu, pocl)]
    assert processors == ["0000:03:00.0", "0000:03:00.0", "webgpu:0", "cpu", "cpu"]
    assert possible_sum(processors, [100.0, 50.0, 10.0, 4.0, 5.0]) == 115.0
