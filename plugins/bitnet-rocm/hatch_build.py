"""Puts the portable kernels, which lie in bitnet-cuda, into the sdist and into the wheel; an sdist has them already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PORTABLE = "bitnet_rocm/kernels/portable"


class PortableKernels(BuildHookInterface):  # type: ignore[type-arg]  # of any builder
    """Copy of bitnet-cuda's portable kernels in the wheel; an editable install uses those of the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare each build. Raises FileNotFoundError if the kernels, which a wheel needs, are missing."""
        beside = Path(self.root).parent / "bitnet-cuda/src/bitnet_cuda/kernels/portable"
        if version == "editable" or (Path(self.root) / "src" / PORTABLE).is_dir():
            return
        if not beside.is_dir():
            raise FileNotFoundError(f"the portable kernels are not at {beside}: build from a checkout or from an sdist")
        where = PORTABLE if self.target_name == "wheel" else f"src/{PORTABLE}"
        build_data["force_include"][str(beside)] = where
