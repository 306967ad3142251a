"""`bitnet tune` times every device and keeps what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bitnet_core.cli.tune import _print
from bitnet_core.measure import tune as tune_module
from bitnet_core.measure.products import ProductTime
from bitnet_core.measure.tune import TunedDevice
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.tuning import measured


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measured, "path", lambda: tmp_path / "tuned.json")
    monkeypatch.setattr(tune_module, "_STEPS_SECONDS", 0.01)
    return tmp_path / "tuned.json"


def test_every_device_is_timed_and_kept(bitnet, install_plugin) -> None:
    install_plugin("vulkan")  # its devices are none: a reason, and the others go on
    result = bitnet("tune", "--synthetic", "tiny", "--json")
    numpy, broken = json.loads(result.out)
    assert (numpy["device"], broken["device"]) == ("numpy:0", "vulkan:0")
    assert numpy["token_seconds"] > 0
    assert {product["key"].split()[0] for product in numpy["products"]} == {"matmul_ternary", "matmul_dense"}
    assert [product["head"] for product in numpy["products"]].count(True) == 1
    assert broken["reason"]
    shown = json.loads(bitnet("devices", "--json").out)
    assert {info["device"]: info["place"].split(":")[0] for info in shown} == {
        "numpy:0": "measured",
        "vulkan:0": "by its backend's rank; not measured (`bitnet tune`)",
    }
    assert "numpy:0" in bitnet("tune", "--synthetic", "tiny").out


def test_what_auto_takes_is_named_also_where_software_is_quicker(capsys: pytest.CaptureFixture[str]) -> None:
    quick = DeviceInfo("vulkan", 0, "llvmpipe", DeviceType.SOFTWARE)
    native = DeviceInfo("cpu", 0, "a CPU", DeviceType.CPU)
    _print("tiny", [TunedDevice(quick, 0.001), TunedDevice(native, 0.002)])
    assert "`auto` takes cpu:0" in capsys.readouterr().err


def test_tilings_for_which_no_time_was_left_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    native = DeviceInfo("cpu", 0, "a CPU", DeviceType.CPU)
    products = [ProductTime("a", 1, False, 1.0, 1.0, 1, None, (), left) for left in (0, 3)]
    _print("tiny", [TunedDevice(native, 0.002, tuple(products))])
    assert "cpu:0: no time was left for 3 tilings" in capsys.readouterr().err


def test_options_exclude_each_other(bitnet) -> None:
    assert bitnet("tune", "--synthetic", "tiny", "-m", "stories").code == 2
