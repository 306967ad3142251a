"""Entry point of the Level Zero backend. Importing this loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class LevelZeroBackend:
    """All GPUs of all Level Zero drivers, in the order of the loader."""

    name = "level-zero"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """Ask the drivers; BackendUnavailableError where the loader, a driver or a device is missing."""
        from bitnet_levelzero.describe import find_devices

        return [found.info for found in find_devices()]

    def open(self, index: int) -> Device:
        """Open the one of `devices()` with this index."""
        from bitnet_core.errors import DeviceNotFoundError

        from bitnet_levelzero.describe import find_devices
        from bitnet_levelzero.device import LevelZeroDevice

        devices = find_devices()
        for found in devices:
            if found.info.index == index:
                return LevelZeroDevice(found)
        names = ", ".join(f"level-zero:{found.info.index} {found.info.name}" for found in devices)
        raise DeviceNotFoundError(
            f"there is no device level-zero:{index}", backend="level-zero", hint=f"There is {names}"
        )


@hookimpl
def bitnet_backend() -> LevelZeroBackend:
    """Offer the backend to core."""
    return LevelZeroBackend()
