"""The conformance kit on every NVIDIA GPU of this machine; the emulator's run of it is in test_emulated.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bitnet_core.errors import BackendUnavailableError, DeviceLostError, GpuError, OutOfMemoryError, UnsupportedError
from bitnet_core.kernels.catalogue import RMS_NORM
from bitnet_core.testing import BackendConformance
from bitnet_cuda.errors import Status, check


class TestConformance(BackendConformance):
    backend = "cuda"

    def compile_broken_source(self, device: Any) -> None:
        device.compile_source(RMS_NORM, {"GROUP": 32}, "this is not C++")

    def failures(self) -> Sequence[tuple[str, Callable[[], object], type[GpuError]]]:
        expected: dict[Status, type[GpuError]] = {
            Status.OUT_OF_MEMORY: OutOfMemoryError,
            Status.NO_DEVICE: BackendUnavailableError,
            Status.ILLEGAL_ADDRESS: DeviceLostError,
            Status.LAUNCH_FAILED: DeviceLostError,
            Status.UNSUPPORTED_PTX_VERSION: UnsupportedError,
        }
        return [
            (status.name, lambda status=status: check((status,), "try", requested=1), kind)
            for status, kind in expected.items()
        ]
