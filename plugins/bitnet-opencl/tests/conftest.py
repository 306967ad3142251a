"""The OpenCL device under test: PoCL if it is installed, else any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.testing.workbench import Bench
from bitnet_opencl import device as device_module
from bitnet_opencl.compile import Compiler
from bitnet_opencl.describe import KNOWN, usable
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


NvidiaBench = Callable[[Callable[..., str]], AbstractContextManager[Bench]]
"""Makes a workbench with the function that takes the place of `program_source` (fixture `nvidia_bench`)."""


@pytest.fixture(scope="session")
def nvidia_bench(session_device: OpenCLDevice, open_bench: Callable[[OpenCLDevice], Bench]) -> NvidiaBench:
    """Return a function that makes the workbench of a device that seems to be NVIDIA's, and gets its programs from a
    function."""

    @contextmanager
    def made(source: Callable[..., str]) -> Iterator[Bench]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_module, "program_source", source)
            device = OpenCLDevice(EnumeratedDevice(session_device._device, session_device.info))
            device._abilities = [*device._abilities, "-cl-opt-disable"]
            extra = {**device.info.extra, "max_group": 1024, "lanes": 32, "compute_units": 4, "members": 0, "ptx": True}
            device.info = replace(device.info, type=DeviceType.GPU, kernels=frozenset(KNOWN["kernels"]), extra=extra)
            bench = open_bench(device)
            yield bench
            bench.close()

    return made


@pytest.fixture(scope="session")
def open_bench() -> Callable[[OpenCLDevice], Bench]:
    """Return a function that makes the kit's workbench of an open device."""
    return lambda device: Bench(Opened(device), 0, device.info)
