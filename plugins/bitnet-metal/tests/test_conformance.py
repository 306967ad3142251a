"""The conformance kit, on the Mac's GPU or on the stand-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from unittest.mock import patch

from bitnet_hal.device import Device, Tuning
from bitnet_hal.errors import GpuError
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.testing import BackendConformance
from bitnet_metal import compile


class Failure:
    """An NSError of a command buffer."""

    def __init__(self, code: int) -> None:
        self._code = code

    def domain(self) -> str:
        return "MTLCommandBufferErrorDomain"

    def code(self) -> int:
        return self._code

    def localizedDescription(self) -> str:  # noqa: N802 - Apple's name
        return f"failed with {self._code}"


def _raise(code: int) -> None:
    from bitnet_metal.errors import failed

    raise failed(Failure(code))


class TestConformance(BackendConformance):
    backend = "metal"

    def compile_broken_source(self, device: Device) -> None:
        with patch.object(compile, "source", lambda *_: "kernel void rms_norm() { nowhere = 1; }"):
            device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))

    def failures(self) -> Sequence[tuple[str, Callable[[], object], type[GpuError]]]:
        from bitnet_metal.errors import TABLE

        return [(f"code {code}", partial(_raise, code), kind) for code, (kind, _, _) in TABLE.items() if kind]
