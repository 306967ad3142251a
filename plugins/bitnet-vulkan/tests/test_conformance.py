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
from bitnet_core.kernels.catalogue import RMS_NORM
from bitnet_core.testing import BackendConformance
from bitnet_vulkan.errors import Stage, VkResult, check


class TestConformance(BackendConformance):
    backend = "vulkan"

    def compile_broken_source(self, device: Any) -> None:
        device.compile_code(RMS_NORM, {"GROUP": 32}, b"not SPIR-V, but long enough to be")

    def failures(self) -> Sequence[tuple[str, Any, type[GpuError]]]:
        expected = {
            VkResult.ERROR_OUT_OF_HOST_MEMORY: OutOfMemoryError,
            VkResult.ERROR_OUT_OF_DEVICE_MEMORY: OutOfMemoryError,
            VkResult.ERROR_DEVICE_LOST: DeviceLostError,
            VkResult.ERROR_INCOMPATIBLE_DRIVER: BackendUnavailableError,
            VkResult.ERROR_LAYER_NOT_PRESENT: BackendUnavailableError,
            VkResult.ERROR_EXTENSION_NOT_PRESENT: UnsupportedError,
            VkResult.TIMEOUT: GpuTimeoutError,
        }
        return [
            (status.name, lambda status=status: check(status, Stage.QUEUE, requested=1), kind)
            for status, kind in expected.items()
        ]
