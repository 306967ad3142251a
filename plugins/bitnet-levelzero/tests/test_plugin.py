"""Level Zero alone: results, memory, waits, cached programs; the driver is the one in driver/."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_hal.device import MemoryKind, whole
from bitnet_hal.errors import (
    DeviceLostError,
    GpuError,
    GpuTimeoutError,
    LaunchError,
    OutOfMemoryError,
)
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_levelzero.api import load
from bitnet_levelzero.describe import usable
from bitnet_levelzero.device import SLOT, LevelZeroDevice
from bitnet_levelzero.errors import RESULTS, check

Floats = npt.NDArray[np.float32]


def test_import_loads_no_driver() -> None:
    code = "import sys, bitnet_levelzero.plugin as p; p.bitnet_backend(); assert '_cffi_backend' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_result_of_the_header_becomes_an_exception() -> None:
    header = Path("/usr/include/level_zero/ze_api.h")
    if not header.exists():
        pytest.skip("it needs ze_api.h (apt install libze-dev)")
    import re

    named = dict(re.findall(r"^\s+ZE_RESULT_(\w+) = (0x\w+|\d+),", header.read_text(encoding="utf-8"), re.MULTILINE))
    named = {name: int(value, 0) for name, value in named.items() if name not in ("SUCCESS", "FORCE_UINT32")}
    assert {value: name for name, value in named.items()}.items() <= {
        at: row.name for at, row in RESULTS.table.items()
    }.items()
    with pytest.raises(LaunchError, match=r"ZE_RESULT_unnamed \(0x12345678\)"):
        check(0x12345678, "test")


def test_structures_are_laid_out_as_the_headers_say(tmp_path: Path) -> None:
    if not Path("/usr/include/level_zero/ze_api.h").exists() or shutil.which("cc") is None:
        pytest.skip("it needs ze_api.h and a C compiler (apt install libze-dev gcc)")
    ffi = load().ffi
    structs = [name for name in ffi.list_types()[0] if ffi.typeof(name).kind == "struct"]
    assert len(structs) > 20
    places = [(name, field, at.offset) for name in structs for field, at in ffi.typeof(name).fields]
    checks = [f'_Static_assert(offsetof({name}, {field}) == {at}, "");' for name, field, at in places]
    checks += [f'_Static_assert(sizeof({name}) == {ffi.sizeof(name)}, "");' for name in structs]
    headers = "#include <level_zero/ze_api.h>\n#include <level_zero/zes_api.h>\n#include <stddef.h>\n"
    source = tmp_path / "layout.c"
    source.write_text(headers + "\n".join(checks), encoding="utf-8")
    subprocess.run(["cc", "-fsyntax-only", source], check=True)


def sums(device: LevelZeroDevice) -> tuple[Floats, Floats]:
    """Return rms_norm of 64 numbers, uploaded and downloaded without a wait between them, and the expected result."""
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


def test_waits_are_bounded(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("DRIVER_HANG", "1")
        device.alloc(16)
        with pytest.raises(GpuTimeoutError, match="ZE_RESULT_NOT_READY"):
            device.synchronize()
        with pytest.raises(GpuTimeoutError):
            device.upload(whole(device.alloc(4 * SLOT)), memoryview(bytes(4 * SLOT)))
    device.synchronize()


@pytest.mark.parametrize(
    ("failing", "kind"),
    [("zeFenceHostSynchronize:70000001", DeviceLostError), ("zeFenceHostSynchronize:78000004", LaunchError)],
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
    """Use host memory in place only if kernels can read all of it."""
    room = np.zeros(1024, np.uint8)
    host = room[-room.ctypes.data % 64 :][:256]
    host.view(np.float32)[:] = 3
    assert device.wrap(memoryview(host)) is None
    monkeypatch.setenv("DRIVER_SYSTEM", "1")
    other = LevelZeroDevice(usable()[0])
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
    device: LevelZeroDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for turn in range(2):
        other = LevelZeroDevice(usable()[0])
        found, expected = sums(other)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        other.close()
        if turn == 0:
            assert len(list(tmp_path.rglob("*.bin"))) == 1
            monkeypatch.setattr("bitnet_levelzero.compile._binary", lambda *args: pytest.fail("compiled again"))


def test_lists_are_used_again(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand transfers make no thousand lists."""
    buffer = device.alloc(16)
    for _ in range(1000):
        device.download(whole(buffer), memoryview(bytearray(16)))
    kinds = [kind for kind, _ in device._context._living]
    assert kinds.count("CommandList") <= 2
    assert kinds.count("Fence") <= 2


BROKEN = """
from bitnet_levelzero import compile as module
from bitnet_levelzero.describe import usable
from bitnet_levelzero.device import LevelZeroDevice
module.listed = lambda name: ["one driver", "another"]
device = LevelZeroDevice(usable()[0])
spirv = module.archive()["rms_norm.GROUP256"]
module.archive = lambda: {"broken": spirv[:2000] + bytes(800)}
try:
    device._compiler.kernel("broken", 256)
except module.GpuError as error:
    print(error.code)
device.close()
"""


@pytest.mark.usefixtures("device")
def test_with_several_drivers_a_program_that_does_not_build_is_an_error(run: Callable[..., str]) -> None:
    """With several drivers the loader wraps every handle and returns no log."""
    assert "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE" in run(BROKEN, ZE_ENABLE_LOADER_INTERCEPT="1")


@pytest.mark.usefixtures("device")
def test_a_receipt_counts_the_launches(tmp_path: Path) -> None:
    """The command line generates the same text as numpy."""
    texts = []
    for name in ("level-zero", "numpy"):
        receipt = tmp_path / f"{name}.json"
        options = ["--device", name, "-n", "8", "--temperature", "0", "--receipt", str(receipt)]
        command = [str(Path(sys.executable).with_name("bitnet")), "run", *options, "Once upon a time"]
        texts.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert texts[0] == texts[1]
    launched = json.loads((tmp_path / "level-zero.json").read_text(encoding="utf-8"))["kernels"]["level-zero:0"]
    assert launched["argmax_advance"] >= 7
    assert launched["attention"] == launched["rope_store_kv"] > launched["argmax_advance"]
    assert launched["matmul_ternary"] == 4 * launched["attention"]
