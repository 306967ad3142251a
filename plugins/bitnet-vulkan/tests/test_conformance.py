"""The conformance kit on every Vulkan device."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bitnet_hal.device import Tuning
from bitnet_hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.testing import BackendConformance
from bitnet_vulkan import compile
from bitnet_vulkan.driver import check


class TestConformance(BackendConformance):
    backend = "vulkan"

    def compile_broken_source(self, device: Any) -> None:
        with pytest.MonkeyPatch.context() as patch, tempfile.NamedTemporaryFile(suffix=".spv") as file:
            file.write(b"not SPIR-V, but long enough to be")
            file.flush()
            patch.setattr(compile, "source_of", lambda *_: Path(file.name))
            device._pipelines.build(RMS_NORM, {}, Tuning(private={"GROUP": 32}))

    def failures(self) -> Sequence[tuple[str, Any, type[GpuError]]]:
        expected = {
            -1: OutOfMemoryError,
            -2: OutOfMemoryError,
            -4: DeviceLostError,
            -6: BackendUnavailableError,
            -7: UnsupportedError,
            -9: BackendUnavailableError,
            2: GpuTimeoutError,
        }
        return [
            (str(status), lambda status=status: check(status, "submit", requested=1), kind)
            for status, kind in expected.items()
        ]
