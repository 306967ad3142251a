"""Results of `bitnet tune` determine the device of `auto` and the tiling of a product."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType, Tuning
from bitnet_hal.discovery.order import in_order, ranked, reason
from bitnet_hal.discovery.registry import kernels_hash, registry
from bitnet_hal.discovery.selection import devices
from bitnet_hal.tuning import measured
from bitnet_hal.tuning.measured import Measured, keep, tiling_key, token_seconds

TILING = Tuning({"TILE_N": 16, "TILE_T": 1, "SPLITS": 1}, "few", {"LANES": 4}, 64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(measured, "path", lambda: tmp_path / "cache" / "tuned.json")
    return tmp_path / "cache" / "tuned.json"


@pytest.fixture
def machine(install_plugin) -> list[DeviceInfo]:
    """Return an integrated GPU, the native CPU and a CPU behind OpenCL."""
    install_plugin("vulkan", "Backend.devices = lambda self: [DeviceInfo('vulkan', 0, 'iGPU', DeviceType.INTEGRATED)]")
    install_plugin("cpu", "Backend.devices = lambda self: [DeviceInfo('cpu', 0, 'native', DeviceType.CPU)]")
    install_plugin("opencl", "Backend.devices = lambda self: [DeviceInfo('opencl', 0, 'pocl', DeviceType.SOFTWARE)]")
    return list(devices())


def order() -> list[str]:
    return [info.request for info in ranked(devices())]


def test_an_integrated_gpu_comes_after_the_native_cpu_until_it_is_measured(machine: list[DeviceInfo]) -> None:
    assert order() == ["cpu:0", "vulkan:0", "opencl:0", "numpy:0"]
    by_name = {info.request: info for info in machine}
    assert "run `bitnet tune` to measure" in reason(by_name["vulkan:0"], {})
    quick, slow = Measured("stories", 0.001), Measured("stories", 0.002)
    keep([(by_name["vulkan:0"], quick), (by_name["cpu:0"], slow)], kernels_hash)
    assert order() == ["vulkan:0", "cpu:0", "opencl:0", "numpy:0"]
    measured = reason(by_name["vulkan:0"], token_seconds(machine, kernels_hash))
    assert measured == "measured: 1 ms per token (`bitnet tune`)"


def test_a_measurement_does_not_lift_software(machine: list[DeviceInfo]) -> None:
    keep([(info, Measured("stories", 0.01 if info.backend == "opencl" else 1.0)) for info in machine], kernels_hash)
    assert order().index("opencl:0") > order().index("cpu:0")


def test_measurements_of_different_models_are_not_compared(machine: list[DeviceInfo]) -> None:
    by_name = {info.request: info for info in machine}
    keep([(by_name["cpu:0"], Measured("large", 1.0)), (by_name["vulkan:0"], Measured("small", 0.1))], kernels_hash)
    assert order()[0] == "cpu:0"


def test_another_driver_or_other_kernels_make_it_unknown(machine: list[DeviceInfo]) -> None:
    info = next(info for info in machine if info.backend == "cpu")
    keep([(info, Measured("stories", 0.002, {"a": TILING}))], kernels_hash)
    assert measured.measured(info, kernels_hash) == Measured("stories", 0.002, {"a": TILING})
    assert measured.measured(replace(info, driver="another"), kernels_hash) is None
    assert measured.measured(replace(info, fake=True), kernels_hash) is None
    module = registry()._plugins.get_plugin("cpu")
    Path(module.__file__).write_text(Path(module.__file__).read_text() + "\n# another kernel\n")
    registry.cache_clear()
    assert measured.measured(info, kernels_hash) is None


def test_tilings_of_other_sizes_stay(machine: list[DeviceInfo]) -> None:
    keep([(machine[0], Measured("one", 0.1, {"a": TILING}))], kernels_hash)
    keep([(machine[0], Measured("two", 0.2, {"b": TILING}))], kernels_hash)
    found = measured.measured(machine[0], kernels_hash)
    assert found is not None
    assert (found.model, set(found.tilings)) == ("two", {"a", "b"})


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff{",
        b"[]",
        b'{"cpu:0": 1}',
        b"[" * 100_000,
        lambda entry: entry | {"token_seconds": "x"},
        lambda entry: entry | {"token_seconds": -1},
        lambda entry: entry | {"tilings": {"a": {"tile": {"TILE_N": float("inf")}, "private": {}}}},
        lambda entry: entry | {"tilings": {"a": {"tile": {"TILE_N": "x"}}}},
        lambda entry: entry | {"tilings": 3},
    ],
)
def test_a_damaged_file_is_an_empty_one(machine: list[DeviceInfo], cache: Path, damage) -> None:
    info = next(info for info in machine if info.backend == "cpu")
    keep([(info, Measured("stories", 0.002))], kernels_hash)
    if callable(damage):
        entries = json.loads(cache.read_bytes())
        entries["cpu:0"] = damage(entries["cpu:0"])
        cache.write_text(json.dumps(entries))
    else:
        cache.write_bytes(damage)
    assert measured.measured(info, kernels_hash) is None
    assert in_order(devices())[0].request == "cpu:0"


def test_a_product_is_named_by_what_its_tiling_depends_on() -> None:
    params = {"rows": 1, "outs": 5, "width": 128, "y_stride": 7, "y_first": 2}
    assert tiling_key("matmul_ternary", {"ADD": 1}, params) == "matmul_ternary ADD=1 outs=5 rows=1 width=128"


def test_a_gpu_that_reads_its_own_memory_comes_first() -> None:
    own = DeviceInfo("vulkan", 0, "card", DeviceType.GPU)
    assert ranked([DeviceInfo("cpu", 0, "native", DeviceType.CPU), own])[0] is own
