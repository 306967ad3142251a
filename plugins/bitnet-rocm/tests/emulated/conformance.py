"""The conformance kit on the emulated GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from bitnet_hal.device import Tuning
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.testing import BackendConformance
from bitnet_rocm import compile


class TestConformance(BackendConformance):
    backend = "rocm"

    def compile_broken_source(self, device: Any) -> None:
        with patch.object(compile, "source", lambda *_: "this is not C++"):
            device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))
