"""Entry point of the toy backend; importing it does not load numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class ToyBackend:
    """A backend with one device: the host, through numba."""

    name = "toy"
    api = (2, 1)

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the host. Raises BackendUnavailableError if numba cannot be loaded."""
        from bitnet_hal.errors import BackendUnavailableError

        try:
            from bitnet_toy.device import device_info
        except ImportError as exc:
            raise BackendUnavailableError(
                f"numba cannot be imported: {exc}", backend="toy", operation="devices", hint="pip install numba"
            ) from exc
        return [device_info()]

    def open(self, index: int) -> Device:
        """Open the host. Raises DeviceNotFoundError unless the index is 0."""
        from bitnet_hal.errors import DeviceNotFoundError

        if index != 0:
            raise DeviceNotFoundError(f"there is no device toy:{index}", backend="toy", hint="Use toy:0")
        from bitnet_toy.device import ToyDevice

        return ToyDevice()


@hookimpl
def bitnet_backend() -> ToyBackend:
    """Return the backend."""
    return ToyBackend()
