"""Entry points of the WebGPU backend; importing it loads no driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

if TYPE_CHECKING:
    from bitnet_hal.hooks import RegisterCommand

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Return the backend of all adapters of Vulkan, Metal and Direct3D 12 that wgpu finds."""
    return LazyBackend("webgpu", (2, 1), "bitnet_webgpu.describe:usable", "bitnet_webgpu.device:WebGpuDevice")


def export_web(folder: Path) -> None:
    """Write the shipped stories model for examples/web-stories: weights, kernels, launches, tokenizer."""
    from bitnet_webgpu.export import export

    export(folder)


@hookimpl
def bitnet_commands(register: RegisterCommand) -> None:
    """Register `bitnet export-web DIR`."""
    register("export-web", export_web)
