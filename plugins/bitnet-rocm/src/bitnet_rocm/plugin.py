"""Entry point of the ROCm backend; importing it loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class RocmBackend:
    """Every AMD GPU that the HIP runtime shows; HIP_VISIBLE_DEVICES is honoured by it."""

    name = "rocm"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """All GPUs the runtime shows; BackendUnavailableError says what is missing."""
        from bitnet_rocm.describe import device_infos

        return device_infos()

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        from bitnet_rocm.device import RocmDevice

        return RocmDevice(index)


@hookimpl
def bitnet_backend() -> RocmBackend:
    """Offer the backend to core."""
    return RocmBackend()
