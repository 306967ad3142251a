"""What is Level Zero's own: messages, results, hazards of command lists, memory; the driver is that of driver/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    LaunchError,
    OutOfMemoryError,
)
from bitnet_core.hal.device import MemoryKind, View, whole
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.plan.launcher import Launcher
from bitnet_levelzero import describe, driver
from bitnet_levelzero.api import RESULTS
from bitnet_levelzero.compile import Compiler
from bitnet_levelzero.describe import find_devices
from bitnet_levelzero.device import LevelZeroDevice
from bitnet_levelzero.errors import TABLE, check
from bitnet_levelzero.memory import STAGING_BYTES
from bitnet_levelzero.plugin import LevelZeroBackend
from bitnet_levelzero.recording import CommandList

LIST = "from bitnet_levelzero.plugin import LevelZeroBackend; print(LevelZeroBackend().devices())"
Floats = npt.NDArray[np.float32]


def run(code: str, **environment: str) -> str:
    """What a process says with these variables, on both channels."""
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return process.stdout + process.stderr


def test_import_loads_no_driver() -> None:
    code = "import ctypes; ctypes.CDLL = None; import bitnet_levelzero.plugin as p; p.bitnet_backend()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_result_of_the_header_becomes_an_exception() -> None:
    header = Path("/usr/include/level_zero/ze_api.h")
    if not header.exists():
        pytest.skip("there is no ze_api.h")
    import re

    named = dict(re.findall(r"^\s+ZE_RESULT_(\w+) = (0x\w+|\d+),", header.read_text(encoding="utf-8"), re.MULTILINE))
    named = {name: int(value, 0) for name, value in named.items() if name not in ("SUCCESS", "FORCE_UINT32")}
    assert {value: name for name, value in named.items()}.items() <= RESULTS.items()
    assert TABLE.keys() <= RESULTS.keys()
    with pytest.raises(LaunchError, match=r"ZE_RESULT_unnamed \(0x12345678\)"):
        check(0x12345678, "test")


def test_no_loader_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError("libze_loader.so.1: cannot open shared object file")

    monkeypatch.setattr(driver, "load", missing)
    with pytest.raises(BackendUnavailableError, match="loader is not installed") as caught:
        find_devices()
    assert "\n" not in str(caught.value)


def test_no_driver_and_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(LIST, DRIVER_FAIL="zeInit:78000001")
    assert "found no driver with a GPU" in said
    assert "0x78000001" in said
    monkeypatch.setattr(describe.glob, "glob", lambda pattern: ["/dev/dri/renderD128"])
    monkeypatch.setattr(describe.os, "access", lambda *arguments: False)
    error = describe._unavailable("no driver", "")
    assert "/dev/dri/renderD128 may not be opened" in str(error)
    assert "usermod -aG render" in error.hint


def test_a_driver_that_is_too_old_is_named_with_both_versions(device: LevelZeroDevice) -> None:
    said = run(LIST, DRIVER_API="10001")
    assert "it has Level Zero 1.1, and 1.3 is needed" in said


def test_the_real_driver_without_a_gpu() -> None:
    """Intel's own driver, and the exit code of the command line."""
    if list(Path("/dev/dri").glob("renderD*")):
        pytest.skip("this machine has a GPU")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZE_")}
    bitnet = str(Path(sys.executable).with_name("bitnet"))
    command = [bitnet, "bench", "--synthetic", "tiny", "--device", "level-zero"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == BackendUnavailableError.exit_code, process.stderr
    assert "found no driver with a GPU" in process.stderr
    assert "Traceback" not in process.stderr


def test_what_a_device_tells(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    info = device.info
    assert info.physical_id == "0000:03:00.0"
    assert info.extra["architecture"] == "Xe-HPG (Arc A)"
    assert info.type.value == "integrated"
    monkeypatch.setenv("DRIVER_DISCRETE", "1")
    assert find_devices()[0].info.type.value == "gpu"
    assert device.free_memory() == -1  # the test driver has no sysman


def sums(device: LevelZeroDevice) -> tuple[Floats, Floats]:
    """rms_norm of 64 numbers, uploaded and downloaded without a wait between, and what it should be."""
    spec, params = CATALOGUE["rms_norm"], {"rows": 1, "width": 64, "eps": 0.0}
    x = np.arange(1, 65, dtype=np.float32)
    buffers = [device.alloc(nbytes) for nbytes in (256, 4, 256, 256)]
    launch = Launcher(device).prepare(spec, params, [whole(buffer) for buffer in buffers])
    for buffer in (buffers[0], buffers[2]):
        device.upload(whole(buffer), memoryview(x).cast("B"))
    Launcher(device).run([launch])
    found = np.empty(64, np.float32)
    device.download(whole(buffers[3]), memoryview(found).cast("B"))
    return found, x * x / np.sqrt(np.mean(x * x))


def test_commands_run_in_order(device: LevelZeroDevice) -> None:
    found, expected = sums(device)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def copied(device: LevelZeroDevice) -> bool:
    """Whether bytes arrive that are uploaded, copied and downloaded without a wait between."""
    data = np.arange(64, dtype=np.uint8)
    first, second = device.alloc(64), device.alloc(64)
    device.upload(whole(first), data.data)
    device.copy(whole(first), whole(second))
    found = np.zeros(64, np.uint8)
    device.download(whole(second), found.data)
    return bool((found == data).all())


def test_without_barriers_the_result_is_wrong(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver runs what no barrier orders in the other order; so the test before, and the kit, can fail."""
    assert copied(device)
    monkeypatch.setattr(driver.load(), "zeCommandListAppendBarrier", lambda *arguments: 0)
    assert not copied(device)


def test_an_open_list_is_refused(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandList, "close", lambda self: None)
    with pytest.raises(LaunchError, match="ZE_RESULT_ERROR_INVALID_ARGUMENT"):
        device.download(whole(device.alloc(16)), memoryview(bytearray(16)))


def test_what_is_freed_too_early_is_seen(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not wait before it frees fails with the next command that is carried out."""
    buffer = device.alloc(64)
    device.synchronize()
    device.upload(whole(buffer), memoryview(bytes(64)))
    with monkeypatch.context() as patch:
        patch.setattr(device, "_wait", lambda: None)
        device.free(buffer)
    with pytest.raises(DeviceLostError):
        device.synchronize()


def test_arguments_are_those_of_the_append(device: LevelZeroDevice) -> None:
    """Two launches of one kernel in one list."""
    spec = CATALOGUE["embed_rows"]
    params = {"rows": 1, "hidden": 4, "first": 0, "count": 2}
    table, step, x, z = (device.alloc(nbytes) for nbytes in (32, 32, 16, 16))
    device.upload(whole(table), memoryview(np.arange(8, dtype=np.float32)).cast("B"))
    device.upload(whole(step), memoryview(np.array([0, 0, 0, 0, 1, 0, 0, 0], np.int32)).cast("B"))
    launcher = Launcher(device)
    launches = [
        launcher.prepare(spec, params, [whole(table), View(step, 16 * at, 16), whole(out)], {"DTYPE": 0})
        for at, out in enumerate((x, z))
    ]
    launcher.run(launches)
    for at, out in enumerate((x, z)):
        found = np.empty(4, np.float32)
        device.download(whole(out), memoryview(found).cast("B"))
        np.testing.assert_array_equal(found, np.arange(4 * at, 4 * at + 4))


def test_waits_are_bounded(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("DRIVER_HANG", "1")
        device.alloc(16)
        with pytest.raises(GpuTimeoutError, match="ZE_RESULT_NOT_READY"):
            device.synchronize()
        with pytest.raises(GpuTimeoutError):
            device.upload(whole(device.alloc(4 * STAGING_BYTES)), memoryview(bytes(4 * STAGING_BYTES)))
    device.synchronize()


@pytest.mark.parametrize(
    ("failing", "kind"),
    [("zeCommandQueueSynchronize:70000001", DeviceLostError), ("zeCommandQueueSynchronize:78000004", LaunchError)],
)
def test_failures_are_typed(
    device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch, failing: str, kind: type[GpuError]
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("DRIVER_FAIL", failing)
        device.alloc(16)
        with pytest.raises(kind):
            device.synchronize()
    if kind is DeviceLostError:
        with pytest.raises(DeviceLostError):
            device.alloc(16)


def test_no_memory_says_how_much_was_wanted(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_FAIL", "zeMemAlloc:70000003")
    with pytest.raises(OutOfMemoryError) as caught:
        device.alloc(1000)
    assert caught.value.requested == 1000
    monkeypatch.delenv("DRIVER_FAIL")


@pytest.mark.parametrize("kind", list(MemoryKind))
def test_all_kinds_of_memory_are_zeroed_and_aligned(device: LevelZeroDevice, kind: MemoryKind) -> None:
    buffer = device.alloc(1000, kind)
    assert buffer.address % 64 == 0
    found = np.ones(1000, np.uint8)
    device.download(whole(buffer), found.data)
    assert not found.any()


def test_host_memory_in_place(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where kernels may read all of it."""
    room = np.zeros(1024, np.uint8)
    host = room[-room.ctypes.data % 64 :][:256]
    host.view(np.float32)[:] = 3
    assert device.wrap(memoryview(host)) is None
    monkeypatch.setenv("DRIVER_SYSTEM", "1")
    other = LevelZeroDevice(find_devices()[0])
    wrapped = other.wrap(memoryview(host))
    assert wrapped is not None
    index, gamma, y = (other.alloc(nbytes) for nbytes in (4, 256, 256))
    other.upload(whole(gamma), memoryview(np.full(64, 2, np.float32)).cast("B"))
    views = [whole(wrapped), whole(index), whole(gamma), whole(y)]
    launcher = Launcher(other)
    launcher.run([launcher.prepare(CATALOGUE["rms_norm"], {"rows": 1, "width": 64, "eps": 0.0}, views)])
    found = np.empty(64, np.float32)
    other.download(whole(y), memoryview(found).cast("B"))
    np.testing.assert_allclose(found, 2)
    other.close()


def test_native_programs_are_kept_and_taken_back(
    device: LevelZeroDevice, keeping: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(2):
        other = LevelZeroDevice(find_devices()[0])
        found, expected = sums(other)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        other.close()
        if turn == 0:
            assert len(list(keeping.rglob("*.bin"))) == 1
            monkeypatch.setattr(Compiler, "_keep", lambda *args: pytest.fail("compiled again"))


def test_lists_are_used_again(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand transfers make no thousand lists."""
    made: list[CommandList] = []
    create = CommandList.__init__

    def counted(commands: CommandList, *arguments: Any) -> None:
        made.append(commands)
        create(commands, *arguments)

    monkeypatch.setattr(CommandList, "__init__", counted)
    buffer = device.alloc(16)
    for _ in range(1000):
        device.download(whole(buffer), memoryview(bytearray(16)))
    assert len(made) <= 2


BROKEN = """
from dataclasses import replace
from bitnet_levelzero import compile as module
from bitnet_levelzero.describe import find_devices
from bitnet_levelzero.device import LevelZeroDevice
device = LevelZeroDevice(replace(find_devices()[0], alone=False))
spirv = module.archive()["rms_norm.GROUP256"]
module.archive = lambda: {"broken": spirv[:2000] + bytes(800)}
try:
    device._compiler.kernel("broken", 256)
except module.GpuError as error:
    print(error.code)
device.close()
"""


def test_with_several_drivers_a_program_that_does_not_build_is_an_error(device: LevelZeroDevice) -> None:
    """Of which the loader, which then wraps every handle, has no text."""
    assert "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE" in run(BROKEN, ZE_ENABLE_LOADER_INTERCEPT="1")


def test_unknown_index() -> None:
    assert "there is no device level-zero:99" in run(
        "from bitnet_levelzero.plugin import *; LevelZeroBackend().open(99)"
    )
    assert LevelZeroBackend.api == (2, 0)
