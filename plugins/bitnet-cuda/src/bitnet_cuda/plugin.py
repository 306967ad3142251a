"""Entry point of the CUDA backend; importing it loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class CudaBackend:
    """Every NVIDIA GPU of compute capability 7.5 or later; CUDA_VISIBLE_DEVICES is honoured by the driver."""

    name = "cuda"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """All GPUs the driver shows; BackendUnavailableError says what is missing."""
        from bitnet_cuda.describe import device_infos

        return device_infos()

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        from bitnet_cuda.device import CudaDevice

        return CudaDevice(index)


@hookimpl
def bitnet_backend() -> CudaBackend:
    """Offer the backend to core."""
    return CudaBackend()
