"""Free memory, temperature and clocks of a GPU or of one of its tiles, by sysman (ZES_ENABLE_SYSMAN=1).

Drivers may offer none of it, and old loaders lack the functions: what is not reported is left out.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from bitnet_hal.errors import GpuError
from bitnet_hal.plugin import Handle

from bitnet_levelzero.api import given, listed
from bitnet_levelzero.describe import LevelZeroGpu

TEMPERATURES = (0, 1)  # zes_temp_sensors_t: the maximum of all sensors, of those of the GPU
CLOCKS = {0: "clock", 1: "memory_clock"}  # zes_freq_domain_t


def free_memory(found: LevelZeroGpu) -> int:
    """Return the free bytes of the memory modules; -1 if the driver does not report them."""
    try:
        modules = [module for module, _ in _parts(found, "DeviceEnumMemoryModules", "MemoryGetProperties")]
        return sum(given("zesMemoryGetState", module)["free"] for module in modules) if modules else -1
    except (GpuError, AttributeError):
        return -1


def sensors(found: LevelZeroGpu) -> dict[str, float]:
    """Return the readings (bitnet_hal.features.SENSORS), the highest of each kind."""
    readings: list[tuple[str, float]] = []
    with suppress(GpuError, AttributeError):
        for sensor, about in _parts(found, "DeviceEnumTemperatureSensors", "TemperatureGetProperties"):
            if about["type"] in TEMPERATURES:
                readings.append(("temperature", given("zesTemperatureGetState", sensor)))
    with suppress(GpuError, AttributeError):
        for domain, about in _parts(found, "DeviceEnumFrequencyDomains", "FrequencyGetProperties"):
            if about["type"] in CLOCKS:
                readings.append((CLOCKS[about["type"]], given("zesFrequencyGetState", domain)["actual"]))
    known = sorted((name, value) for name, value in readings if value >= 0)  # a negative value is unknown
    return dict(known)


def _parts(found: LevelZeroGpu, enumerate_parts: str, describe: str) -> list[tuple[Handle, dict[str, Any]]]:
    """Return the parts of a kind with their properties: those of a tile, or all of a GPU."""
    described = [(part, given(f"zes{describe}", part)) for part in listed(f"zes{enumerate_parts}", found.card)]
    if found.tile < 0:
        return described
    return [(part, about) for part, about in described if about["onSubdevice"] and about["subdeviceId"] == found.tile]
