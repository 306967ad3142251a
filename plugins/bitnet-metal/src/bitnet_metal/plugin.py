"""Entry point of the Metal backend; importing it loads no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class MetalBackend:
    """GPUs of Apple silicon, through Metal."""

    name = "metal"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """All GPUs that can be used; BackendUnavailableError says what is missing."""
        from bitnet_metal.describe import usable

        return [info for _, info in usable()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        from bitnet_metal.device import MetalDevice

        return MetalDevice(index)


@hookimpl
def bitnet_backend() -> MetalBackend:
    """Offer the backend to core."""
    return MetalBackend()
