"""Wheel build hook: rebuild the SPIR-V if the required glslang is installed, else package the committed files."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SpirvBuildHook(BuildHookInterface[Any]):
    """A hook that runs `spirv.build` on the package's kernels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Rebuild before the files are collected."""
        spirv = runpy.run_path(str(Path(self.root) / "spirv.py"))
        spirv["build"](spirv["KERNELS"])
