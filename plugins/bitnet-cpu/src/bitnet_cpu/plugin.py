"""Entry point of the CPU backend; importing it does not load the native module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_hal.device import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class CpuBackend:
    """The CPU of this machine."""

    name = "cpu"
    api = (2, 1)

    def devices(self) -> Sequence[DeviceInfo]:
        """Return one device, the CPU. Raises BackendUnavailableError if the native module does not load."""
        from bitnet_cpu.describe import cpu_info

        return [cpu_info()]

    def open(self, index: int) -> Device:
        """Open the CPU with the code path that BITNET_CPU_KERNEL names, else the best."""
        from bitnet_hal.errors import DeviceNotFoundError

        from bitnet_cpu.device import CpuDevice

        if index != 0:
            raise DeviceNotFoundError(f"there is no device cpu:{index}", backend="cpu", hint="Use cpu:0")
        return CpuDevice()


@hookimpl
def bitnet_backend() -> CpuBackend:
    """Return the backend for this machine's CPU."""
    return CpuBackend()
