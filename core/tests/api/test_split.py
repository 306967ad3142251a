"""Models on several devices, by the API's and the command line's options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bitnet_core
import pytest
from bitnet_core.api import loading
from bitnet_core.engine import placement
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.split import main_device, parse_split
from bitnet_core.receipt_checks import verify_receipt
from bitnet_hal.errors import DeviceNotFoundError, OutOfMemoryError, UsageError

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def text() -> str:
    """Return what the numpy device writes."""
    with bitnet_core.load(None, "numpy") as model:
        return model.generate(PROMPT, max_tokens=8).text


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fake GPUs."""
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda,vulkan")


def test_layers_go_where_the_split_says(two_gpus: None, text: str) -> None:
    with bitnet_core.load(None, split="cuda:2,vulkan:0:4") as model:
        assert model.generate(PROMPT, max_tokens=8).text == text
        assert model.device.info.request == "vulkan:0"
        stats = model.stats()
        assert stats["layers_by_device"] == {"cuda:0": 2, "vulkan:0": 4}
        assert set(stats["kernel_launches_by_device"]) == {"cuda:0", "vulkan:0"}


def test_auto_takes_all_gpus_by_their_speed(two_gpus: None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "layer_seconds", lambda *at: 1.0 if at[2].info.backend == "cuda" else 2.0)
    monkeypatch.setattr(placement, "head_seconds", lambda *at: 0.0)
    with bitnet_core.load(None, "cuda", split="auto") as model:
        assert model.engine.layers_by_device == {"vulkan:0": 2, "cuda:0": 4}
        assert model.generate(PROMPT, max_tokens=8).text == text


def test_auto_with_one_gpu_is_no_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    with bitnet_core.load(None, split="auto") as model:
        assert model.engine.layers_by_device == {"cuda:0": 6}


def test_auto_closes_a_gpu_that_it_does_not_use(two_gpus: None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Any] = []

    def all_on_the_last(source: Any, options: Any, opened: Any) -> list[int]:
        devices.extend(opened)
        return [0] * (len(opened) - 1) + [source.config.n_layers]

    monkeypatch.setattr(loading, "split_layers", all_on_the_last)
    with bitnet_core.load(None, "cuda", split="auto") as model:
        assert model.engine.layers_by_device == {"cuda:0": 6}
        assert model.generate(PROMPT, max_tokens=8).text == text
        with pytest.raises(ValueError, match="after close"):
            devices[0].alloc(4)


def test_a_layer_and_the_head_are_measured(two_gpus: None) -> None:
    with bitnet_core.load(None, split="auto") as model:
        assert sum(model.engine.layers_by_device.values()) == 6
        assert len(model.engine.layers_by_device) == 2


def test_offloaded_layers_run_on_the_cpu(two_gpus: None, text: str, bitnet: Any, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    result = bitnet("run", PROMPT, "-n", 8, "-d", "cuda", "--offload", 4, "--receipt", path)
    assert (result.code, result.out.strip()) == (0, text.strip())
    assert "0 4, cuda:0 2" in result.err
    receipt = verify_receipt(path)
    cpu, gpu = receipt["layers"].items()
    assert (cpu[1], gpu) == (4, ("cuda:0", 2))
    verified = bitnet("receipt", "verify", path)
    assert f"layers: {cpu[0]} 4, cuda:0 2" in verified.err


def test_bench_names_the_layers(two_gpus: None, bitnet: Any) -> None:
    arguments = ("bench", "--split", "cuda:3,vulkan:3", "-p", 4, "-n", 2, "--repeat", 1)
    document = json.loads(bitnet(*arguments, "--json").out)
    assert document["layers"] == {"cuda:0": 3, "vulkan:0": 3}
    assert document["bandwidth_fraction"] is None
    shown = " ".join(bitnet(*arguments).out.split())
    assert "layers cuda:0 3, vulkan:0 3" in shown
    assert "by all devices together" in shown


def test_a_profile_names_the_layers_that_it_times(two_gpus: None) -> None:
    with bitnet_core.load(None, split="cuda:2,vulkan:4") as model:
        model.generate(PROMPT, max_tokens=8)
        steps = [step.step for step in model.profile()]
    assert steps
    assert all(step.endswith(", 4 of 6 layers on vulkan:0") for step in steps)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("cuda", "is not a part of a split"),
        ("cuda:0:0", "is not a part of a split"),
        ("cuda:2,cuda:4", "names a device twice"),
        ("cuda:2,cuda:0:4", "names a device twice: its devices are cuda:0, cuda:0"),
        ("gpu:2,vulkan:2,cuda:0:2", "names a device twice: its devices are cuda:0, vulkan:0, cuda:0"),
        ("cuda:123456,vulkan:5", "has 123461 layers, and the model 6"),
        ("no device:2,cuda:4", "is not a device"),
        ("", "is not a part of a split"),
        ("cuda:2,vulkan:5", "has 7 layers, and the model 6"),
    ],
)
def test_a_split_that_is_not_possible(two_gpus: None, split: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bitnet_core.load(None, split=split)


def test_a_device_that_is_not_there(two_gpus: None) -> None:
    with pytest.raises(DeviceNotFoundError, match="metal"):
        bitnet_core.load(None, split="metal:2,vulkan:4")


def test_options_that_exclude_each_other(two_gpus: None, bitnet: Any) -> None:
    with pytest.raises(UsageError, match="excludes --device"):
        bitnet_core.load(None, "cuda", split="cuda:2,vulkan:4")
    with pytest.raises(UsageError, match="split and offload exclude each other"):
        EngineOptions(split="auto", offload=3)
    with pytest.raises(UsageError, match="offload must be a number of layers"):
        EngineOptions(offload=-1)
    assert bitnet("run", PROMPT, "--offload", "some").code == 2
    assert bitnet("run", PROMPT, "-d", "cuda", "--split", "cuda:2,vulkan:4").code == 2
    for several in ("cuda,vulkan", "all"):
        with pytest.raises(UsageError, match="a split and a list of devices exclude each other"):
            main_device("auto", several)
    assert main_device("auto", "cuda") == "cuda"
    assert main_device("cuda:2,vulkan:4", None) == "vulkan"
    assert [str(request) for request, _ in parse_split("cuda:0:2, opencl:1:4")] == ["cuda:0", "opencl:1"]


def test_all_devices_are_closed_if_one_is_too_small(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from bitnet_hal.reference.device import NumpyDevice

    opened: list[NumpyDevice] = []
    allocate = NumpyDevice._alloc

    def small(device: NumpyDevice, nbytes: int, kind: Any) -> Any:
        if device not in opened:
            opened.append(device)
        if device.info.backend == "vulkan":
            raise OutOfMemoryError("full", requested=nbytes, free=0, backend="vulkan")
        return allocate(device, nbytes, kind)

    monkeypatch.setattr(NumpyDevice, "_alloc", small)
    with pytest.raises(OutOfMemoryError):
        bitnet_core.load(None, split="cuda:2,vulkan:4")
    assert {device.info.backend for device in opened} == {"cuda", "vulkan"}
    assert all(device._closed for device in opened)
