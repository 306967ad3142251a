"""Kernels that a device with a stream compiles ahead; there is no driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from bitnet_hal.device import Tuning
from bitnet_hal.errors import KernelCompileError
from bitnet_hal.families.stream import Calls, Result, StreamDevice, StreamLaunch
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.rounding import round_up

NORM, BROKEN = CATALOGUE["rms_norm"], CATALOGUE["embed_rows"]
TUNING = Tuning({}, private={"GROUP": 64})


class Driver:
    """The functions of a driver that hand out numbers; all succeed."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: (0, round_up(id(name), 16))


class Compiling(StreamDevice):
    """A device whose compiler waits for `go`. made: kernel and thread of each compilation."""

    prefix = "cu"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.made: list[tuple[str, threading.Thread]] = []
        call = Driver().call
        functions = [call] * len(Calls.__dataclass_fields__)
        super().__init__(numpy_info(), Driver(), Calls(*functions))

    def check(self, result: Result, operation: str, *, requested: int = 0, free: int = -1) -> Result:
        return result[1:]

    def address(self, pointer: Any) -> int:
        return int(pointer)

    def code(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> bytes:
        assert self.go.wait(10)
        self.made.append((spec.name, threading.current_thread()))
        if spec is BROKEN:
            raise KernelCompileError("it does not compile", backend="numpy")
        return b"code"

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        return TUNING

    def queue(self, launch: StreamLaunch) -> None:
        raise NotImplementedError


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    monkeypatch.setattr("bitnet_hal.families.stream.host_view", lambda _, nbytes: memoryview(bytearray(nbytes)))
    made = Compiling()
    yield made
    made.go.set()
    made.close()


def test_compile_takes_what_another_thread_compiles(device: Compiling) -> None:
    for _ in range(2):
        device.compile_ahead(NORM, {}, TUNING)
    device.go.set()
    device.compile(NORM, {}, TUNING)
    (name, thread), *others = device.made
    assert name == NORM.name
    assert thread is not threading.current_thread()
    assert not others
    device.compile(NORM, {}, TUNING)  # it was taken
    assert device.made[1:] == [(NORM.name, threading.current_thread())]


def test_an_error_of_a_compiler_that_runs_ahead_is_raised_by_compile(device: Compiling) -> None:
    tuning = replace(TUNING, tile={"TILE_N": 64})
    device.compile_ahead(BROKEN, {"DTYPE": 0}, tuning)
    device.go.set()
    with pytest.raises(KernelCompileError, match="does not compile"):
        device.compile(BROKEN, {"DTYPE": 0}, tuning)


def test_a_device_that_closes_waits_for_no_compiler(device: Compiling) -> None:
    device.compile_ahead(NORM, {}, TUNING)
    device.close()
    assert not device.made
