"""Sensors by NVML, over an imitation of the library."""

from __future__ import annotations

from typing import Any

import pytest
from bitnet_cuda import nvml

NOT_SUPPORTED = 3  # nvmlReturn_t


class Library:
    """An NVML with one GPU that reports no power, as a partition of a GPU does."""

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: bytes, gpu: Any) -> int:  # noqa: N802 - NVML's name
        return 0 if address == b"0000:06:00.0" else 6

    def nvmlDeviceGetTemperature(self, gpu: Any, sensor: int, found: Any) -> int:  # noqa: N802 - NVML's name
        found._obj.value = 61
        return 0

    def nvmlDeviceGetClockInfo(self, gpu: Any, kind: int, found: Any) -> int:  # noqa: N802 - NVML's name
        found._obj.value = {0: 1980, 2: 2619}[kind]
        return 0

    def nvmlDeviceGetPowerUsage(self, gpu: Any, found: Any) -> int:  # noqa: N802 - NVML's name
        found._obj.value = 99
        return NOT_SUPPORTED


def test_readings_are_in_the_units_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "library", Library)
    assert nvml.readings("0000:06:00.0") == {"temperature": 61, "clock": 1980, "memory_clock": 2619}
    assert nvml.readings("0000:07:00.0") == {}


def test_a_machine_without_nvml_has_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", "libno-such-library.so")
    nvml.library.cache_clear()
    assert nvml.readings("0000:06:00.0") == {}
    nvml.library.cache_clear()
