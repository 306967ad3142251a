"""A GPU with no more than WebGPU promises: eight storage buffers, 16 KiB of workgroup memory, bindings of 128 MiB at
multiples of 256 bytes, no feature. The adapter of this machine stands in for it, and wgpu holds it to these limits."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from bitnet_core.api import Model, load
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.tokenizer import load_tokenizer
from bitnet_hal.device import DeviceInfo
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.driver.enumerate import EnumeratedDevice, by_index
from bitnet_hal.errors import BackendUnavailableError, UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.testing.cases.case import Case, expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.workbench import Bench
from bitnet_webgpu import describe
from bitnet_webgpu.device import WebGpuDevice

pytestmark = pytest.mark.slow

LARGE = ("many-outs", "t512", "ten_thousand", "70001")
"""In the names of cases that take a CPU long, and differ from others in size alone."""
DEFAULTS = dict(zip(describe.KNOWN["limits"], (256 << 20, 128 << 20, 8, describe.STORAGE, 256), strict=True))
PROMPT = "Once upon a time there was a shy fox named Mia. Next door lived Otto, an old bear."
CASES = [
    case
    for spec in CATALOGUE.values()
    if spec.base or spec.name in (*describe.KNOWN["everywhere"], "norm_matmul", "norm_matmul_glu")
    for case in cases_of(spec.name)[::4]
    if not any(word in case.id for word in LARGE)
]


class Poor:
    """Backend of one adapter with such limits."""

    name = "webgpu"
    api = (2, 1)

    def devices(self) -> list[DeviceInfo]:
        return [found.info for found in poor()]

    def open(self, index: int) -> WebGpuDevice:
        return WebGpuDevice(by_index(poor(), index, "webgpu"))


def poor() -> list[EnumeratedDevice]:
    real = describe.usable()[0].handle
    adapter = SimpleNamespace(
        info={**real.info, "adapter_type": "DiscreteGPU"},
        limits=DEFAULTS,
        features=set[str](),
        request_device_sync=real.request_device_sync,
    )
    return [EnumeratedDevice(adapter, describe.describe(adapter, 0))]


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    try:
        made = Bench(Poor(), 0, poor()[0].info)
    except BackendUnavailableError as error:
        if request.config.getoption("--require-device"):
            raise
        pytest.skip(str(error))
    yield made
    made.close()


def test_wgpu_holds_the_device_to_them(bench: Bench) -> None:
    assert isinstance(bench.device, WebGpuDevice)
    assert {name: bench.device._handle.limits[name] for name in DEFAULTS} == DEFAULTS
    assert not bench.device._handle.features


FEW_ROWS_ONLY = ("norm_matmul", "norm_matmul_glu", "approx_logits", "refine_logits")


def test_every_kernel_fits(bench: Bench) -> None:
    ran = set()
    for case in CASES:
        try:
            run(bench, case)
        except UnsupportedError:
            assert case.kernel in FEW_ROWS_ONLY, "several rows are left to the kernels that these replace"
        else:
            ran.add(case.kernel)
    assert ran == {case.kernel for case in CASES}


def run(bench: Bench, case: Case) -> None:
    launch = case.launch()
    bench.launcher.compiled(case.spec, launch.params, launch.constants)  # a kernel that does not build is no skip
    launch, actual = bench.run(case)
    bench.tidy()
    check_outputs(case, launch, expected(case.spec, launch), actual)


def test_a_model_says_the_same(bench: Bench) -> None:
    device = WebGpuDevice(poor()[0])
    opened = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    summary = BackendStartupSummary(DeviceRequest("webgpu", 0), ("webgpu",), device.info)
    options = EngineOptions("f16", context=256, max_sequences=1)
    with (
        Model(opened, load_tokenizer(opened.tokenizer), device, summary, options) as model,
        load(device="numpy") as reference,
    ):
        assert model.generate(PROMPT, max_tokens=12).tokens == reference.generate(PROMPT, max_tokens=12).tokens
        assert "norm_matmul" in {name for step in model.engine.recordings().values() for name in step.counts}
