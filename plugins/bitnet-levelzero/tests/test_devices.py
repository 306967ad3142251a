"""Enumeration and its messages if something is missing: devices, tiles, memory, versions, permissions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from bitnet_hal.device import DeviceType
from bitnet_hal.discovery.order import ranked
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_levelzero import api, describe
from bitnet_levelzero.describe import usable
from bitnet_levelzero.device import LevelZeroDevice
from bitnet_levelzero.plugin import bitnet_backend
from bitnet_levelzero.sysman import free_memory
from bitnet_levelzero.tuning import architecture

LIST = "from bitnet_levelzero.plugin import bitnet_backend; print(bitnet_backend().devices())"
Run = Callable[..., str]


def test_no_loader_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise OSError("libze_loader.so.1: cannot open shared object file")

    monkeypatch.setattr(api, "load", missing)
    with pytest.raises(BackendUnavailableError, match="loader is not installed") as caught:
        usable()
    assert "\n" not in str(caught.value)


def test_a_loader_without_a_driver(run: Run) -> None:
    said = run(LIST, DRIVER_FAIL="zeInit:78000001")
    assert "the Level Zero loader found no driver with a GPU" in said
    assert "0x78000001" in said


def test_a_render_node_that_may_not_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The driver then finds no device, and the loader no driver."""
    node = tmp_path / "renderD128"
    node.touch()
    monkeypatch.setattr(describe, "NODES", str(tmp_path / "renderD*"))
    monkeypatch.setattr(api, "load", lambda: SimpleNamespace(lib=SimpleNamespace(zeInit=lambda flags: 0x78000001)))
    monkeypatch.setattr(describe.os, "access", lambda path, mode: path != str(node))
    with pytest.raises(BackendUnavailableError, match=f"{node} may not be opened") as caught:
        usable()
    assert "sudo usermod -aG render" in caught.value.hint
    monkeypatch.setattr(describe.os, "access", lambda path, mode: True)
    with pytest.raises(BackendUnavailableError) as caught:
        usable()
    assert "may not be opened" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "version", "message"),
    [
        ("DRIVER_API", "0x10001", "it has Level Zero 1.1, and 1.3 is needed"),
        ("DRIVER_SPIRV", "0x10000", "it has SPIR-V 1.0, and 1.2 is needed"),
    ],
)
@pytest.mark.usefixtures("device")
def test_a_driver_that_is_too_old_is_named_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, variable: str, version: str, message: str
) -> None:
    monkeypatch.setenv(variable, version)
    with pytest.raises(BackendUnavailableError, match=message):
        usable()


@pytest.mark.usefixtures("device")
def test_a_driver_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_DEVICES", "")
    with pytest.raises(BackendUnavailableError, match="no Level Zero driver has a GPU"):
        usable()


def test_the_real_driver_without_a_gpu(tmp_path: Path) -> None:
    """Intel's own driver is loaded; the message, and the exit code of the command line."""
    if list(Path("/dev/dri").glob("renderD*")):
        pytest.skip("this machine has a GPU")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZE_")}
    environment["XDG_CACHE_HOME"] = str(tmp_path)  # what the driver said before is kept there
    bitnet = str(Path(sys.executable).with_name("bitnet"))
    command = [bitnet, "bench", "--synthetic", "tiny", "--device", "level-zero"]
    process = subprocess.run(
        command, env={**environment, "LD_DEBUG": "libs"}, capture_output=True, text=True, check=False
    )
    assert process.returncode == BackendUnavailableError.exit_code == 11, process.stderr
    assert "found no driver with a GPU" in process.stderr
    assert "Traceback" not in process.stderr
    if os.environ.get("CI") == "true":  # which installs it
        assert re.search(r"calling init: /\S*libze_intel_gpu\.so\.1", process.stderr)


def test_what_a_device_tells(device: LevelZeroDevice) -> None:
    info = device.info
    assert info.physical_id == "0000:03:00.0"
    assert info.extra["architecture"] == "Xe-HPG (Arc A)"
    assert info.extra["dpas"] == "present, not used yet"
    assert info.type is DeviceType.INTEGRATED


def test_families() -> None:
    """SIMD widths, local memory and instructions of the architectures that the programs were compiled for, and of
    Xe2."""
    assert {architecture(number)["name"] for number in (0x9A49, 0x4680, 0x5690, 0xE20B)} == {
        "Xe-LP (Tiger Lake)",
        "Xe-LP (Alder Lake)",
        "Xe-HPG (Arc A)",
        "Xe2 (Arc B)",
    }
    assert architecture(0x9A49)["simd"] == [8, 16, 32]
    assert architecture(0x64A0)["simd"] == [16, 32]
    assert architecture(0x64A0)["slm"] == 131072
    assert not architecture(0x9A49)["dpas"]
    assert architecture(0x0102) == {}


@pytest.mark.usefixtures("device")
def test_a_discrete_gpu_comes_before_an_integrated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A discrete GPU holds the weights, all of which are read for each token, in its own memory."""
    monkeypatch.setenv("DRIVER_DEVICES", "id")
    found = [one.info for one in usable()]
    assert [info.type for info in found] == [DeviceType.INTEGRATED, DeviceType.GPU]
    assert ranked(found)[0].request == "level-zero:1"


@pytest.mark.usefixtures("device")
def test_tiles_are_devices_behind_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVER_DEVICES", "id")
    monkeypatch.setenv("DRIVER_TILES", "2")
    found = usable()
    name = "test driver of bitnet-levelzero"
    assert [one.info.name for one in found] == [name, name, f"{name}, tile 0", f"{name}, tile 1"]
    assert [one.info.extra["tiles"] for one in found] == [1, 2, 1, 1]
    device = bitnet_backend().open(3)
    assert device.info.request == "level-zero:3"
    device.close()


def test_free_memory_is_what_sysman_says(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free memory of all tiles or of one; -1 without sysman."""
    assert device.free_memory() == -1
    monkeypatch.setenv("DRIVER_FREE", "5000000000")
    assert device.free_memory() == 5_000_000_000
    monkeypatch.setenv("DRIVER_DEVICES", "d")
    monkeypatch.setenv("DRIVER_TILES", "2")
    assert [free_memory(one) for one in usable()] == [10_000_000_000, 5_000_000_000, 5_000_000_000]


def test_temperature_and_clocks_are_what_sysman_says(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those of the memory, which are another kind and unknown; nothing without sysman."""
    assert device.sensors() == {}
    monkeypatch.setenv("DRIVER_SENSORS", "1")
    assert device.sensors() == {"temperature": 61, "clock": 2050}


def test_a_kernels_memory_and_subgroup_are_what_the_driver_says(device: LevelZeroDevice) -> None:
    params = {"rows": 1, "width": 64, "eps": 0.0}
    prepared, _ = Launcher(device).compiled(CATALOGUE["rms_norm"], params, {})
    assert device.kernel_resources(prepared.kernel) == {"private_bytes": 96, "shared_bytes": 1024, "subgroup": 16}


@pytest.mark.usefixtures("device")
def test_unknown_index(run: Run) -> None:
    said = run("from bitnet_levelzero.plugin import *; bitnet_backend().open(99)")
    assert "there is no device level-zero:99. Present: level-zero:0 test driver" in said
    assert bitnet_backend().api == (2, 1)
