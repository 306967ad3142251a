"""Find the kernels that do not compile on a device."""

from __future__ import annotations

from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.errors import GpuError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.launcher import Launcher
from bitnet_hal.testing.cases.registry import cases_of


def kernels_of(info: DeviceInfo) -> list[KernelSpec]:
    """Return all base kernels, and the optional kernels of the catalogue that the device offers."""
    return [spec for spec in CATALOGUE.values() if spec.base or spec.name in info.kernels]


def failing_kernels(device: Device) -> dict[str, GpuError]:
    """Compile each kernel for its first case in the kit; return the errors by kernel name."""
    launcher = Launcher(device)
    failed = dict[str, GpuError]()
    for spec in kernels_of(device.info):
        launch = cases_of(spec.name)[0].launch()
        try:
            launcher.compiled(spec, launch.params, launch.constants)
        except GpuError as error:
            failed[spec.name] = error
    launcher.release()
    return failed
