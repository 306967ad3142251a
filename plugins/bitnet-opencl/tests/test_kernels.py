"""The sources for GPUs, by the kit's own cases on whatever OpenCL device there is: a CPU runs them too, only slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from bitnet_hal.device import DeviceType
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.testing.cases.case import Case, CaseLaunch, expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.workbench import Bench
from bitnet_hal.tuning.measured import tiling_key
from bitnet_opencl.clc.tuning import GPU
from bitnet_opencl.describe import KNOWN
from bitnet_opencl.device import OpenCLDevice

pytestmark = pytest.mark.slow

MOST_CASES = 4
CHUNKED = ("prompts", "prompt-k128-v128")
"""Cases with rows enough for the chunked gated_delta_rule."""
MOST_ELEMENTS = 3_000_000
"""Elements of a case's largest operand: larger ones take a CPU long and show nothing more."""
PORTABLE = {"max_group": 256, "lanes": 32, "compute_units": 1, "nvidia": False, "ptx": False, "members": 0}
PROFILES = {
    "portable": PORTABLE,
    "small": {**PORTABLE, "max_group": 64},
    "nvidia": {**PORTABLE, "max_group": 1024, "compute_units": 20, "ptx": True, "members": 1},
}
"""DeviceInfo.extra of GPUs; NVIDIA's without its own instructions. A CPU runs one group at once."""


@pytest.fixture(scope="module")
def benches(
    session_device: OpenCLDevice, open_bench: Callable[[OpenCLDevice], Bench]
) -> Iterator[Callable[[str], Bench]]:
    """A bench on a device with the tunings of a profile."""
    opened: dict[str, Bench] = {}

    def bench_of(profile: str) -> Bench:
        if profile not in opened:
            opened[profile] = open_bench(with_profile(session_device, PROFILES[profile]))
        return opened[profile]

    yield bench_of
    for bench in opened.values():
        bench.close()


def with_profile(session_device: OpenCLDevice, profile: Mapping[str, int]) -> OpenCLDevice:
    """Another device, with all kernels on offer.

    Without optimization: many barriers in one kernel take minutes otherwise.
    """
    device = OpenCLDevice(EnumeratedDevice(session_device._device, session_device.info))
    kernels = frozenset(KNOWN["kernels"])
    device.info = replace(device.info, type=DeviceType.GPU, kernels=kernels, extra=profile)
    device._abilities = [*device._abilities, "-cl-opt-disable"]
    return device


def chosen(kernels: Iterable[str]) -> list[Case]:
    """A few cases of every kernel, from all over its list: compiling takes the time."""
    cases: list[Case] = []
    for kernel in kernels:
        own = [case for case in cases_of(kernel) if not case.label.startswith(("long", "large", "qwen3-large", "many"))]
        cases += own[:: max(1, len(own) // MOST_CASES)]
        cases += [case for case in own if case.label in CHUNKED]
    return cases


def _variant(bench: Bench, spec: KernelSpec, launch: CaseLaunch) -> str:
    with suppress(UnsupportedError):
        return bench.device.tuning(spec, launch.constants, launch.params).variant
    return ""


TILED = (
    *("matmul_ternary", "matmul_ternary_block", "matmul_dense", "attention"),
    *("hadamard_rotate", "causal_conv1d", "gated_delta_rule"),
)
"""Kernels whose tiles depend on the groups that a device can have."""
OFFERED = [name for name, spec in CATALOGUE.items() if spec.base or name in KNOWN["kernels"]]
"""The kernels that some devices of this backend have."""
KERNELS = {"portable": GPU.rows, "small": TILED, "nvidia": OFFERED}
CASES = [(profile, case) for profile, kernels in KERNELS.items() for case in chosen(kernels)]


@pytest.mark.parametrize(("profile", "case"), CASES, ids=lambda value: value if isinstance(value, str) else value.id)
def test_gpu_sources(benches: Callable[[str], Bench], profile: str, case: Case) -> None:
    bench = benches(profile)
    launch = case.launch()
    if sum(array.size for array in launch.arrays.values()) > MOST_ELEMENTS:
        pytest.skip("too large for a CPU")
    if _variant(bench, case.spec, launch) in ("few", "mma"):
        pytest.skip("tensor cores are for test_tensor.py")
    prepared = bench.prepare(case.spec, launch)
    prepared.run(bench.device)
    actual = bench.results(case, launch, prepared)
    bench.tidy()
    with np.errstate(all="ignore"):
        check_outputs(case, launch, expected(case.spec, launch), actual)


@pytest.mark.parametrize(("profile", "lanes"), [("portable", [8, 4, 16, 32]), ("nvidia", [32])])
def test_tunings_on_offer(benches: Callable[[str], Bench], profile: str, lanes: list[int]) -> None:
    """Tunings among which `bitnet tune` chooses on a GPU that nobody has measured; a measured one has a single
    tuning."""
    bench, spec = benches(profile), CATALOGUE["matmul_ternary"]
    case = next(case for case in cases_of("matmul_ternary") if case.launch().params["rows"] == 1)
    launch = case.launch()
    offered = bench.device.tunings(spec, launch.constants, launch.params)
    assert [tuning.private["LANES"] for tuning in offered] == lanes
    for tuning in offered:
        bench.launcher.tilings = {tiling_key(spec.name, launch.constants, launch.params): tuning}
        prepared = bench.prepare(spec, launch)
        prepared.run(bench.device)
        check_outputs(case, launch, expected(spec, launch), bench.results(case, launch, prepared))
        bench.tidy()
