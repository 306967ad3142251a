"""Export of the shipped model to files for WebGPU in a browser."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

from bitnet_hal.launcher import Launch
from bitnet_hal.plugin import DeviceInfo, DeviceType

from bitnet_webgpu.compile import source, stages
from bitnet_webgpu.describe import GROUPS, STORAGE
from bitnet_webgpu.driver import BACKEND
from bitnet_webgpu.step_export import ExportDevice, export_stories  # needs bitnet-core, which has the command
from bitnet_webgpu.tuning import select_tuning

BROWSER = DeviceInfo(
    backend=BACKEND,
    index=0,
    name="browser",
    type=DeviceType.SOFTWARE,
    max_binding=128 << 20,
    max_grid=(GROUPS, GROUPS, GROUPS),
    alignment=256,
    extra=MappingProxyType({"workgroup_storage": STORAGE}),
)
"""WebGPU's default limits, and launches that also suit SwiftShader, the fallback of many browsers."""


def export(folder: Path) -> None:
    """Write the files. Raises UsageError if the folder is not empty."""
    export_stories(folder, ExportDevice(BROWSER, select_tuning), _stages)


def _stages(launch: Launch) -> list[dict[str, Any]]:
    kernel = launch.kernel
    text = source(kernel.spec, kernel.constants, kernel.tuning)
    grids = stages(launch.grid, kernel.tuning)
    return [{"kernel": text, "entry": entry, "grid": grid} for entry, grid in grids.items()]
