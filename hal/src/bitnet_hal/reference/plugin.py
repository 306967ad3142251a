"""Entry point of the numpy backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class NumpyBackend:
    """Always available."""

    name = "numpy"
    api = (2, 1)

    def devices(self) -> Sequence[DeviceInfo]:
        """One device: the host."""
        from bitnet_hal.reference.describe import numpy_info

        return [numpy_info()]

    def open(self, index: int) -> Device:
        """The host."""
        from bitnet_hal.errors import DeviceNotFoundError
        from bitnet_hal.reference.device import NumpyDevice

        if index != 0:
            raise DeviceNotFoundError(f"there is no device numpy:{index}", backend="numpy", hint="Use numpy:0")
        return NumpyDevice()


@hookimpl
def bitnet_backend() -> NumpyBackend:
    """Offer the backend to core."""
    return NumpyBackend()
