"""The driver's report beside a profile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from bitnet_hal.device import Kernel
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the numpy device report sensors and what its kernels use."""

    def resources(self: NumpyDevice, kernel: Kernel) -> Mapping[str, float]:
        return {"registers": 40, "occupancy": 0.75} if kernel.spec.name == "matmul_ternary" else {"registers": 16}

    info = replace(numpy_info(), features=frozenset({"timings", "sensors", "kernel-resources"}))
    monkeypatch.setattr("bitnet_hal.reference.describe.numpy_info", lambda: info)
    monkeypatch.setattr(NumpyDevice, "_sensors", lambda self: {"temperature": 91.0, "memory_clock": 2619.0})
    monkeypatch.setattr(NumpyDevice, "_kernel_resources", resources)


@pytest.mark.usefixtures("reporting")
def test_a_profile_shows_what_the_driver_reports(bitnet, tmp_path) -> None:
    trace = tmp_path / "trace.json"
    arguments = ["bench", "--synthetic", "tiny", "-p", "4", "-n", "4", "--repeat", "1"]
    result = bitnet(*arguments, "--profile", tmp_path / "trace.json")
    lines = [line.split() for line in result.out.splitlines()]
    (product, *_) = [line for line in lines if line[:1] == ["matmul_ternary"] and "75%" in line]
    assert product[-2:] == ["40", "75%"]
    assert ["temperature", "91", "C"] in lines
    assert ["memory", "clock", "2619", "MHz"] in lines
    kept = json.loads(trace.read_text())["otherData"]
    assert kept["sensors"]["temperature"] == 91.0
    assert {kernel["resources"]["registers"] for kernel in kept["kernels"]} == {16, 40}


def test_a_profile_says_what_is_not_reported(bitnet, tmp_path) -> None:
    arguments = ["bench", "--synthetic", "tiny", "-p", "4", "-n", "4", "--repeat", "1"]
    result = bitnet(*arguments, "--profile", tmp_path / "trace.json")
    assert result.out.count("not reported by this backend") == 2
