"""Temperature, clocks and power of a GPU from NVML, the vendor's library that is installed with the driver."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
SUCCESS = 0  # nvmlReturn_t
DIE = 0  # nvmlTemperatureSensors_t
GRAPHICS = 0  # nvmlClockType_t
MEMORY = 2
WATT = 1000.0
"""NVML's unit of power is 1 mW."""


@cache
def library() -> Any:
    """Return the initialised library, None if it is missing or refuses."""
    try:
        loaded = ctypes.CDLL(LIBRARY)
        return loaded if loaded.nvmlInit_v2() == SUCCESS else None
    except (OSError, AttributeError):
        return None


def readings(address: str) -> dict[str, float]:
    """Return the readings (bitnet_hal.features.SENSORS) of the GPU with a PCI address such as "0000:06:00.0".

    A partition of a GPU (MIG) has no clocks and power of its own: what NVML refuses is left out.
    """
    nvml = library()
    gpu = ctypes.c_void_p()
    if nvml is None or nvml.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(gpu)) != SUCCESS:
        return {}
    found = {
        "temperature": _number(nvml.nvmlDeviceGetTemperature, gpu, DIE),
        "clock": _number(nvml.nvmlDeviceGetClockInfo, gpu, GRAPHICS),
        "memory_clock": _number(nvml.nvmlDeviceGetClockInfo, gpu, MEMORY),
        "power": _number(nvml.nvmlDeviceGetPowerUsage, gpu, unit=WATT),
    }
    return {name: value for name, value in found.items() if value is not None}


def _number(function: Any, gpu: ctypes.c_void_p, *arguments: int, unit: float = 1.0) -> float | None:
    """Return the number that a function writes to its last argument, None if it fails."""
    value = ctypes.c_uint()
    status = function(gpu, *arguments, ctypes.byref(value))
    return value.value / unit if status == SUCCESS else None
