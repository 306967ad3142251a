"""Entry point of the WebGPU backend; importing it loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal import Device, DeviceInfo
    from bitnet_core.hal.hooks import RegisterCommand

hookimpl = pluggy.HookimplMarker("bitnet")


class WebGpuBackend:
    """Every adapter that wgpu finds: Vulkan, Metal, Direct3D 12."""

    name = "webgpu"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """All adapters that can be used; BackendUnavailableError says what is missing."""
        from bitnet_webgpu.describe import usable

        return [info for _, info in usable()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        from bitnet_webgpu.device import WebGpuDevice

        return WebGpuDevice(index)


@hookimpl
def bitnet_backend() -> WebGpuBackend:
    """Offer the backend to core."""
    return WebGpuBackend()


def export_web(folder: Path) -> None:
    """Write the shipped stories model for examples/web-stories: weights, kernels, launches, tokenizer."""
    from bitnet_webgpu.export import export

    export(folder)


@hookimpl
def bitnet_commands(register: RegisterCommand) -> None:
    """`bitnet export-web DIR`."""
    register("export-web", export_web)
