"""The OpenCL device under test: PoCL if it is installed, else any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from bitnet_hal.device import DeviceInfo
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.testing.workbench import Bench
from bitnet_opencl.compile import Compiler
from bitnet_opencl.describe import usable
from bitnet_opencl.device import OpenCLDevice

_BINARY = Compiler._binary


@pytest.fixture(scope="session", autouse=True)
def keeping_nothing() -> Iterator[None]:
    """Ask for no binaries, which PoCL makes on request: tests compile many programs once, and it would take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiler, "_binary", lambda *args: None)
        yield


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep binaries in this test."""
    monkeypatch.setattr(Compiler, "_binary", _BINARY)


@pytest.fixture(scope="session")
def session_device(request: pytest.FixtureRequest) -> Iterator[OpenCLDevice]:
    """Open one device for the whole run; its absence is an error in CI and a skip elsewhere."""
    try:
        listed = usable()
    except BackendUnavailableError as error:
        if os.environ.get("CI") == "true" or request.config.getoption("--require-device", default=False):
            raise
        pytest.skip(str(error))
    listed.sort(key=lambda found: "portable computing" not in found.info.driver.lower())
    device = OpenCLDevice(listed[0])
    yield device
    device.close()


@pytest.fixture
def opencl_device(session_device: OpenCLDevice) -> OpenCLDevice:
    return session_device


@dataclass
class Opened:
    """A backend for the workbench whose device is already open."""

    device: OpenCLDevice
    name: str = "opencl"
    api: tuple[int, int] = (2, 0)

    def devices(self) -> list[DeviceInfo]:
        return [self.device.info]

    def open(self, index: int) -> OpenCLDevice:
        return self.device


@pytest.fixture(scope="session")
def open_bench() -> Callable[[OpenCLDevice], Bench]:
    """Return a function that makes the kit's workbench of an open device."""
    return lambda device: Bench(Opened(device), 0, device.info)
