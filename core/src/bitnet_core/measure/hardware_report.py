"""The driver's report for a profile: sensors of the device, and resources of each compiled kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from bitnet_hal.device import Tuning
from bitnet_hal.features import KernelResourcesDevice, SensorDevice

from bitnet_core.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class KernelUse:
    """A compiled kernel of a step, and its resources by the names in bitnet_hal.features.KERNEL_RESOURCES."""

    kernel: str
    tuning: Tuning
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HardwareReport:
    """The driver's report; fields are empty if it has none. sensors: by the names in bitnet_hal.features.SENSORS."""

    sensors: Mapping[str, float]
    kernels: tuple[KernelUse, ...]


def hardware_report(engine: Engine) -> HardwareReport:
    """Return the current sensor readings, and the resources of each compiled kernel of the engine's recordings."""
    device = engine.device
    sensors: Mapping[str, float] = {}
    if "sensors" in device.info.features:
        sensors = cast(SensorDevice, device).sensors()
    kernels: dict[int, KernelUse] = {}
    if "kernel-resources" in device.info.features:
        asked = cast(KernelResourcesDevice, device)
        for recorded in engine.recordings().values():
            for kernel in (launch.kernel for launch in recorded.launches):
                if id(kernel) not in kernels:
                    resources = asked.kernel_resources(kernel)
                    kernels[id(kernel)] = KernelUse(kernel.spec.name, kernel.tuning, resources)
    return HardwareReport(sensors, tuple(kernels.values()))
