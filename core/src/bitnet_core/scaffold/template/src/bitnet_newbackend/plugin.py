"""Entry point of the backend. Importing it loads no driver."""

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
    rank = -1  # `--device auto` never prefers the reference kernels; remove this line once your hardware computes

    def devices(self) -> Sequence[DeviceInfo]:
        """Load the driver and list its devices. Raise BackendUnavailableError with reason and fix if it is absent."""
        from bitnet_newbackend.device import device_info

        return [device_info()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`. Raises DeviceNotFoundError if there is none with this index."""
        from bitnet_hal.errors import DeviceNotFoundError

        from bitnet_newbackend.device import NewBackendDevice

        if index != 0:
            raise DeviceNotFoundError(f"there is no device newbackend:{index}", backend="newbackend")
        return NewBackendDevice()


@hookimpl
def bitnet_backend() -> NewBackendBackend:
    """Return the backend."""
    return NewBackendBackend()
