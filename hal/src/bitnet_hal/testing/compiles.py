"""Which of the kernels that a device has to offer do not compile there."""

from __future__ import annotations

from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.errors import GpuError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.launcher import Launcher
from bitnet_hal.testing.cases.registry import cases_of


def kernels_of(info: DeviceInfo) -> list[KernelSpec]:
    """All base kernels, and those on offer that this core knows."""
    return [spec for spec in CATALOGUE.values() if spec.base or spec.name in info.kernels]


def failing_kernels(device: Device) -> dict[str, GpuError]:
    """Compile each kernel for its first case in the kit; what was raised, by the kernel's name."""
    launcher, failed = Launcher(device), dict[str, GpuError]()
    for spec in kernels_of(device.info):
        launch = cases_of(spec.name)[0].launch()
        try:
            launcher.compiled(spec, launch.params, launch.constants)
        except GpuError as error:
            failed[spec.name] = error
    launcher.release()
    return failed
