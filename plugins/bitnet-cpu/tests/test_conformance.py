"""The conformance kit on the code path that this CPU chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bitnet_cpu.errors import ERRORS, native
from bitnet_hal.errors import GpuError
from bitnet_hal.testing import BackendConformance


def _raise(error: type[Exception]) -> None:
    with native("test"):
        raise error("provoked")


class TestConformance(BackendConformance):
    backend = "cpu"

    def failures(self) -> Sequence[tuple[str, Callable[[], object], type[GpuError]]]:
        return [(native.__name__, partial(_raise, native), kind) for native, kind in ERRORS.items()]
