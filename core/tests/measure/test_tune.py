"""Timing devices, products and tunings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.measure import tune as tune_module
from bitnet_core.measure.tune import time_model, tune
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.device import Tuning
from bitnet_hal.discovery.registry import kernels_hash
from bitnet_hal.discovery.selection import devices
from bitnet_hal.errors import KernelCompileError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.launcher import Launcher
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.tuning import measured
from bitnet_hal.tuning.measured import tiling_key


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measured, "path", lambda: tmp_path / "tuned.json")
    monkeypatch.setattr(tune_module, "_STEPS_SECONDS", 0.01)
    return tmp_path / "tuned.json"


def test_what_is_not_begun_in_time_is_named(install_plugin) -> None:
    install_plugin("vulkan")
    ticks = iter([0.0, *[100.0] * 9])
    found = tune(SyntheticSource("tiny"), "tiny", limit=10.0, clock=lambda: next(ticks))
    assert [speed.reason for speed in found] == ["not started within 10 s"] * 2


class TunableDevice(NumpyDevice):
    """Offers three tunings of products, and lets its clock say that the second is the quickest."""

    def __init__(self) -> None:
        super().__init__(replace(numpy_info(), features=frozenset({"timings", "tunings"})))
        self.now = 0.0

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> Sequence[Tuning]:
        usual = self.tuning(spec, constants, params)
        return [usual, *(replace(usual, private={"TRIED": number}) for number in (1, 2))]

    def replay(self, recording: Any) -> None:
        launches = recording.launches
        self.now += sum({1: 0.5}.get(launch.kernel.tuning.private.get("TRIED", 0), 1.0) for launch in launches)
        super().replay(recording)


def test_the_quickest_tuning_wins_and_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    device = TunableDevice()
    seconds, products = time_model(SyntheticSource("tiny"), device, float("inf"), lambda: device.now)
    assert seconds > 0
    assert {product.tuning.private["TRIED"] for product in products if product.tuning} == {1}
    assert all(product.tuning and product.usual == 2 * product.seconds == 1.0 for product in products)
    found = measured.Measured("tiny", seconds, {one.key: one.tuning for one in products if one.tuning})
    spec, constants = CATALOGUE["matmul_ternary"], {"ADD": 0}
    params = {"rows": 1, "outs": 256, "width": 256, "y_stride": 256, "y_first": 0}
    assert tiling_key(spec.name, constants, params) in found.tilings
    assert all([round(2 * seconds) for _, seconds in one.timed] == [2, 1, 2, 2] for one in products)  # own twice
    used, _ = Launcher(device, found.tilings).compiled(spec, params, constants)
    assert used.kernel.tuning.private == {"TRIED": 1}
    other, _ = Launcher(device, found.tilings).compiled(spec, params | {"outs": 99, "y_stride": 99}, constants)
    assert other.kernel.tuning.private == {}
    monkeypatch.setattr(TunableDevice, "tunings", lambda self, *about: [self.tuning(*about)])  # no longer on offer
    again, _ = Launcher(device, found.tilings).compiled(spec, params, constants)
    assert again.kernel.tuning.private == {}
    device.close()


def test_a_tuning_that_does_not_compile_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = TunableDevice.compile

    def compile_some(self: TunableDevice, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> Any:
        if tuning.private.get("TRIED") == 2:
            raise KernelCompileError("too many registers", kernel=spec.name, log="")
        return compiled(self, spec, constants, tuning)

    monkeypatch.setattr(TunableDevice, "compile", compile_some)
    device = TunableDevice()
    _, products = time_model(SyntheticSource("tiny"), device, float("inf"), lambda: device.now)
    assert {product.tuning.private["TRIED"] for product in products if product.tuning} == {1}
    device.close()


def test_an_engine_uses_what_was_kept_for_its_device() -> None:
    device, best = TunableDevice(), Tuning({"TILE_N": 1, "TILE_T": 1, "SPLITS": 1}, private={"TRIED": 1})
    measured.keep([(device.info, measured.Measured("tiny", 1.0, {"a": best}))], kernels_hash)
    engine = Engine(SyntheticSource("tiny"), device, EngineOptions())
    assert engine.worker.launcher.tilings == {"a": best}
    engine.close()


def test_a_large_model_is_computed_from_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers cost the same, so parts of 1 and 3 give the step of all of them."""
    monkeypatch.setitem(SHAPES, "tiny", replace(SHAPES["tiny"], n_layers=7))
    device = TunableDevice()
    source = SyntheticSource("tiny")
    all_layers, _ = time_model(source, device, float("inf"), lambda: device.now)
    rushed, products = time_model(source, device, device.now + 1e-6, lambda: device.now)
    few, more = (tune_module._part(source, device, layers, None, lambda: device.now)[0] for layers in (1, 3))
    assert all_layers == pytest.approx(few + 6 * (more - few) / 2)
    layer = sum(one.launches for one in products if not one.head)  # a second each: others were not tried any more
    assert {one.left for one in products} == {2}
    assert rushed == few + 6 * layer > all_layers / 2
    device.close()


def test_parts_of_a_hybrid_have_layers_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "bonsai2-tiny", replace(SHAPES["bonsai2-tiny"], n_layers=8))
    device = TunableDevice()
    source = SyntheticSource("bonsai2-tiny")
    all_layers, _ = time_model(source, device, float("inf"), lambda: device.now)
    few, more = (tune_module._part(source, device, layers, None, lambda: device.now)[0] for layers in (2, 6))
    assert all_layers == pytest.approx(few + 6 * (more - few) / 4)
    device.close()


def test_fakes_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    assert [info.request for info in devices()] == ["numpy:0", "cuda:0"]
    assert [speed.info.request for speed in tune(SyntheticSource("tiny"), "tiny")] == ["numpy:0"]
