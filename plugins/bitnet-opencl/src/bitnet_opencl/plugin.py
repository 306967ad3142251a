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
        from bitnet_opencl.describe import find_devices

        return [found.info for found in find_devices()]

    def open(self, index: int) -> Device:
        """Open the one of `devices()` with this index."""
        from bitnet_core.hal.found import numbered

        from bitnet_opencl.describe import find_devices
        from bitnet_opencl.device import OpenCLDevice

        return OpenCLDevice(*numbered(find_devices(), index, self.name))


@hookimpl
def bitnet_backend() -> OpenCLBackend:
    """Offer the backend to core."""
    return OpenCLBackend()
