"""A build hook that copies bitnet-cuda's portable kernels into the sdist and the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PORTABLE = "bitnet_rocm/kernels/portable"


class PortableKernels(BuildHookInterface):  # type: ignore[type-arg]  # of any builder
    """A hook that adds the kernels, unless an editable install uses those of the checkout or an sdist has them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernels to a build. Raises FileNotFoundError if they are missing."""
        beside = Path(self.root).parent / "bitnet-cuda/src/bitnet_cuda/kernels/portable"
        if version == "editable" or (Path(self.root) / "src" / PORTABLE).is_dir():
            return
        if not beside.is_dir():
            raise FileNotFoundError(f"the portable kernels are not at {beside}: build from a checkout or from an sdist")
        where = PORTABLE if self.target_name == "wheel" else f"src/{PORTABLE}"
        build_data["force_include"][str(beside)] = where
