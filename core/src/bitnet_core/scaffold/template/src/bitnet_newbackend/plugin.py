"""Entry point: light to import; the driver is loaded when devices are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class NewBackendBackend:
    """The devices of one driver."""

    name = "newbackend"
    api = (2, 1)

    def devices(self) -> Sequence[DeviceInfo]:
        """Load the driver here; where it is absent, raise BackendUnavailableError with the reason and the fix."""
        from bitnet_newbackend.device import device_info

        return [device_info()]

    def open(self, index: int) -> Device:
        """One of `devices()`."""
        from bitnet_hal.errors import DeviceNotFoundError

        from bitnet_newbackend.device import NewBackendDevice

        if index != 0:
            raise DeviceNotFoundError(f"there is no device newbackend:{index}", backend="newbackend")
        return NewBackendDevice()


@hookimpl
def bitnet_backend() -> NewBackendBackend:
    """Offer the backend to core."""
    return NewBackendBackend()
