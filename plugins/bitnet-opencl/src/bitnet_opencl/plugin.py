"""Entry point of the OpenCL backend. Importing this loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class OpenCLBackend:
    """All devices of all OpenCL platforms, in the order of the drivers."""

    name = "opencl"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """Ask the drivers; BackendUnavailableError where pyopencl, a driver or a device is missing."""
        from bitnet_opencl.describe import list_devices

        return [info for _, info in list_devices()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        from bitnet_core.errors import DeviceNotFoundError

        from bitnet_opencl.describe import list_devices
        from bitnet_opencl.device import OpenCLDevice

        devices = list_devices()
        for device, info in devices:
            if info.index == index:
                return OpenCLDevice(device, info)
        names = ", ".join(f"opencl:{info.index} {info.name}" for _, info in devices)
        raise DeviceNotFoundError(f"there is no device opencl:{index}", backend="opencl", hint=f"There is {names}")


@hookimpl
def bitnet_backend() -> OpenCLBackend:
    """Offer the backend to core."""
    return OpenCLBackend()
