"""The conformance kit on every Vulkan device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_core.testing import BackendConformance
from bitnet_vulkan.errors import check


class TestConformance(BackendConformance):
    backend = "vulkan"

    def compile_broken_source(self, device: Any) -> None:
        device._pipelines.pipeline(
            "rms_norm", {"GROUP": 32}, device._pipelines.layout(1, 4)[0], b"not SPIR-V, but long enough to be"
        )

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
