"""The conformance kit on every AMD GPU of this machine; the emulator's run of it is in test_emulated.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from bitnet_hal.device import Tuning
from bitnet_hal.errors import BackendUnavailableError, DeviceLostError, GpuError, OutOfMemoryError, UnsupportedError
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.testing import BackendConformance
from bitnet_rocm import compile
from bitnet_rocm.errors import check


class TestConformance(BackendConformance):
    backend = "rocm"

    def compile_broken_source(self, device: Any) -> None:
        with patch.object(compile, "source", lambda *_: "this is not C++"):
            device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))

    def failures(self) -> Sequence[tuple[str, Callable[[], object], type[GpuError]]]:
        expected: dict[int, type[GpuError]] = {
            2: OutOfMemoryError,
            100: BackendUnavailableError,
            209: UnsupportedError,
            700: DeviceLostError,
            719: DeviceLostError,
        }
        return [
            (f"hipError_t {status}", partial(check, (status,), "try", requested=1), kind)
            for status, kind in expected.items()
        ]
