"""Entry point of the Level Zero backend. Importing this loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class LevelZeroBackend:
    """All GPUs of all Level Zero drivers, in the order of the loader, each followed by its tiles."""

    name = "level-zero"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """Ask the drivers; BackendUnavailableError where the loader, a driver or a device is missing."""
        from bitnet_levelzero.describe import find_devices

        return [found.info for found in find_devices()]

    def open(self, index: int) -> Device:
        """Open the one of `devices()` with this index."""
        from bitnet_core.hal.found import numbered

        from bitnet_levelzero.describe import find_devices
        from bitnet_levelzero.device import LevelZeroDevice

        return LevelZeroDevice(numbered(find_devices(), index, self.name))


@hookimpl
def bitnet_backend() -> LevelZeroBackend:
    """Offer the backend to core."""
    return LevelZeroBackend()
