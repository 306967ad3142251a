"""The conformance kit on the WebGPU adapters of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bitnet_hal.device import Device
from bitnet_hal.errors import GpuError, LaunchError
from bitnet_hal.testing import BackendConformance


def _raise(name: str) -> None:
    from bitnet_webgpu.errors import converted

    raise converted(type(name, (RuntimeError,), {})("refused"), "submit", "test")


class TestConformance(BackendConformance):
    backend = "webgpu"

    def compile_broken_source(self, device: Device) -> None:
        from bitnet_webgpu.compile import built
        from bitnet_webgpu.device import WebGpuDevice

        assert isinstance(device, WebGpuDevice)
        code = "@compute @workgroup_size(1) fn main() { o[0] = nowhere; }"
        built(device._handle, device.info.name, "broken", code, (True,), ("main",))

    def failures(self) -> Sequence[tuple[str, Callable[[], object], type[GpuError]]]:
        from bitnet_webgpu.errors import TABLE

        return [(name, partial(_raise, name), kind or LaunchError) for name, (kind, *_) in TABLE.items()]
