"""The conformance kit on the OpenCL devices of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from bitnet_hal.device import Device
from bitnet_hal.errors import GpuError, LaunchError
from bitnet_hal.testing import BackendConformance


class TestConformance(BackendConformance):
    backend = "opencl"

    def compile_broken_source(self, device: Device) -> None:
        from bitnet_opencl.device import OpenCLDevice

        assert isinstance(device, OpenCLDevice)
        device._compiler.build("broken", "__kernel void broken(__global int *o) { o[0] = nowhere; }", [])

    def failures(self) -> Sequence[tuple[str, Callable[[], object], type[GpuError]]]:
        pytest.importorskip("pyopencl")
        from bitnet_opencl.errors import STATUSES, check

        return [
            (row.name, partial(check, status, "test"), row.kind or LaunchError)
            for status, row in STATUSES.table.items()
        ]
