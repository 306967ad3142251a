"""Tunings of GPUs that software adapters do not get (fused kernels, positions shared by workgroups), on any adapter:
the kit's cases with subgroups, if it has them, and without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType, Tuning
from bitnet_hal.driver.enumerate import by_index
from bitnet_hal.errors import BackendUnavailableError
from bitnet_hal.testing.cases.case import Case, expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.workbench import Bench
from bitnet_hal.tuning.query import TuningQuery
from bitnet_webgpu.describe import KNOWN, device_infos, usable
from bitnet_webgpu.device import WebGpuDevice
from bitnet_webgpu.tuning import FEW_ROWS, PROMPT_TILES, candidate_tunings, select_tuning

pytestmark = pytest.mark.slow

JOINED = tuple(KNOWN["fused"])
SPLIT = ("attention", "argmax_advance")
HEAD = ("pack_head", "approx_logits", "refine_logits")
REDUCING = (
    *("matmul_dense", "rms_norm", "rms_norm_quantize", "glu_norm_quantize", "rope_store_kv", "top_k"),
    *("gated_rms_norm", "norm_rotate_quantize"),
)
"""Tuned alike everywhere, but for subgroups, which software adapters go without."""
MOST_ROWS = {"norm_matmul": 1, "norm_matmul_glu": 1, "approx_logits": 2, "refine_logits": 2}
"""More rows are left to the kernels that these replace."""
CASES = [
    case
    for kernel in (*JOINED, *SPLIT, *HEAD)
    for case in cases_of(kernel)
    if kernel not in MOST_ROWS or case.launch().params["rows"] <= MOST_ROWS[kernel]
]
OTHERS = [case for kernel in REDUCING for case in cases_of(kernel)[:4]]
FEW = [
    case
    for kernel in (*JOINED, *SPLIT, *HEAD, *REDUCING)
    for case in cases_of(kernel)[:4]
    if case in CASES or kernel in REDUCING
]
"""A few cases of each kernel: all code that differs without subgroups is in one file, `reduce`."""

MANY_ROWS = [
    case
    for kernel in ("matmul_ternary", "matmul_ternary_block")
    for case in cases_of(kernel)
    if FEW_ROWS < case.launch().params["rows"] < 512 and case.launch().params["outs"] < 1000
][::2]


class AsGpu:
    """The first adapter, tuned as a GPU with subgroups of so many threads or more."""

    name = "webgpu"
    api = (2, 1)

    def __init__(self, subgroups: int) -> None:
        self.subgroups = subgroups

    def devices(self) -> list[DeviceInfo]:
        return device_infos()

    def open(self, index: int) -> WebGpuDevice:
        device = WebGpuDevice(by_index(usable(), index, "webgpu"))
        device.info = as_gpu(device.info, self.subgroups)
        return device


def as_gpu(info: DeviceInfo, subgroups: int) -> DeviceInfo:
    extra = {**info.extra, "subgroups": subgroups}
    return replace(info, type=DeviceType.GPU, kernels=info.kernels | {*KNOWN["everywhere"], *JOINED}, extra=extra)


def bench_of(request: pytest.FixtureRequest, subgroups: int) -> Iterator[Bench]:
    backend = AsGpu(subgroups)
    try:
        info = backend.devices()[0]
    except BackendUnavailableError as error:
        if request.config.getoption("--require-device"):
            raise
        pytest.skip(str(error))
    if subgroups > 1 and "subgroup" not in usable()[0].handle.features:
        pytest.skip(f"{info.name} has no subgroups")
    bench = Bench(backend, info.index, as_gpu(info, subgroups))
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def plain(request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from bench_of(request, 1)


@pytest.fixture(scope="module")
def grouped(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Subgroups of four: all have as many."""
    yield from bench_of(request, 4)


def check(bench: Bench, case: Case) -> None:
    launch = case.launch()
    bench.launcher.compiled(case.spec, launch.params, launch.constants)  # a kernel that does not build is no skip
    launch, actual = bench.run(case)
    bench.tidy()
    check_outputs(case, launch, expected(case.spec, launch), actual)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.id, marks=() if case in FEW else pytest.mark.again) for case in [*CASES, *OTHERS]],
)
def test_with_subgroups(grouped: Bench, case: Case) -> None:
    check(grouped, case)


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.id)
def test_without_subgroups(plain: Bench, case: Case) -> None:
    check(plain, case)


@pytest.mark.parametrize("tiles", PROMPT_TILES, ids=str)
@pytest.mark.parametrize("case", MANY_ROWS, ids=lambda case: case.id)
def test_tiles(grouped: Bench, case: Case, tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def tuning(*query: Any) -> Tuning:
        found = candidate_tunings(TuningQuery(*query, grouped.device.info))
        return next(one for one in found if (one.tile["TILE_T"], one.private["GROUP"]) == tiles)

    monkeypatch.setattr(grouped.device, "tuning", tuning)
    check(grouped, case)


def test_gpus_share_positions_and_logits() -> None:
    info = DeviceInfo("webgpu", 0, "x", DeviceType.SOFTWARE, extra={"workgroup_storage": 32768})
    launches = [(case.spec, case.launch()) for case in CASES if case.kernel in (*SPLIT, "rope_attention")]
    variants = {
        select_tuning(TuningQuery(spec, one.constants, one.params, as_gpu(info, 1))).variant for spec, one in launches
    }
    assert variants == {"", "split", "tiled"}


def test_only_what_was_asked_for_is_in_the_text() -> None:
    """Without subgroups no kernel names their built-ins, which a host without the feature refuses."""
    from bitnet_webgpu.compile import source

    for subgroups in (1, 32):
        info = as_gpu(DeviceInfo("webgpu", 0, "x", DeviceType.GPU, extra={"workgroup_storage": 16384}), subgroups)
        found = set()
        for case in FEW:
            launch = case.launch()
            tuning = select_tuning(TuningQuery(case.spec, launch.constants, launch.params, info))
            if "subgroupShuffle" in source(case.spec, launch.constants, tuning):
                found.add(case.kernel)
        assert bool(found) == (subgroups > 1)
