"""The toy passes the conformance kit."""

from bitnet_hal.device import Device
from bitnet_hal.errors import KernelCompileError, LaunchError, OutOfMemoryError
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.rules.errors import Failure


def unfinished(gx, gy, x, index, gamma, y, rows, width, eps):  # a kernel source with an undefined name
    y[gx] = no_such_name  # noqa: F821


def fail(error: Exception) -> None:
    from bitnet_toy.errors import check

    with check("launch", kernel="rms_norm", requested=64):
        raise error


class TestConformance(BackendConformance):
    backend = "toy"

    def compile_broken_source(self, device: Device) -> None:
        from bitnet_toy.compiler import build

        build(unfinished, RMS_NORM)

    def failures(self) -> list[Failure]:
        from numba.core.errors import TypingError

        return [
            ("MemoryError", lambda: fail(MemoryError()), OutOfMemoryError),
            ("TypingError", lambda: fail(TypingError("no")), KernelCompileError),
            ("ZeroDivisionError", lambda: fail(ZeroDivisionError()), LaunchError),
        ]
