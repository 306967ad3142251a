"""Entry point of the numpy backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class NumpyBackend:
    """The backend that is always available."""

    name = "numpy"
    api = (2, 1)

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the description of the host's only device."""
        from bitnet_hal.reference.describe import numpy_info

        return [numpy_info()]

    def open(self, index: int) -> Device:
        """Open the device. Raises DeviceNotFoundError for an index other than 0."""
        from bitnet_hal.errors import DeviceNotFoundError
        from bitnet_hal.reference.device import NumpyDevice

        if index != 0:
            raise DeviceNotFoundError(f"there is no device numpy:{index}", backend="numpy", hint="Use numpy:0")
        return NumpyDevice()


@hookimpl
def bitnet_backend() -> NumpyBackend:
    """Return the backend for discovery."""
    return NumpyBackend()
