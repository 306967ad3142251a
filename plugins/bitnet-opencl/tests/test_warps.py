"""The sources for NVIDIA's warps that need no tensor cores, on any OpenCL device: the portable dialect exchanges values
through local memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bitnet_hal.device import DeviceType, Tuning
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.driver.sources import with_includes
from bitnet_hal.families.opencl_c import program_source
from bitnet_hal.kernels.catalogue import ROTATED_KERNELS
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.testing.cases.case import Case, expected
from bitnet_hal.testing.cases.registry import batches_of, cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.rules.invariance import first_difference
from bitnet_hal.testing.workbench import Bench
from bitnet_hal.tuning.query import FEW_ROWS
from bitnet_opencl import clc
from bitnet_opencl import device as device_module
from bitnet_opencl.describe import KNOWN
from bitnet_opencl.device import OpenCLDevice

KERNELS = sorted(ROTATED_KERNELS)
MOST_ELEMENTS = 100_000
"""Elements of a case's largest operand: larger ones take a CPU long and show nothing more."""


def portable_source(folders: Sequence[Path], spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Return NVIDIA's program with the portable dialect."""
    nvidia, portable = (
        with_includes(sources, "dialect.clh", backend="opencl") for sources in (clc.NVIDIA, clc.PORTABLE)
    )
    text = program_source(clc.NVIDIA, spec, constants, tuning)
    assert nvidia in text
    return text.replace(nvidia, portable)


@pytest.fixture(scope="module")
def bench(session_device: OpenCLDevice, open_bench: Callable[[OpenCLDevice], Bench]) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "program_source", portable_source)
        device = OpenCLDevice(EnumeratedDevice(session_device._device, session_device.info))
        device._abilities = [*device._abilities, "-cl-opt-disable"]
        of_gpu = {**device.info.extra, "max_group": 1024, "lanes": 32, "compute_units": 4, "members": 0, "ptx": True}
        device.info = replace(device.info, type=DeviceType.GPU, kernels=frozenset(KNOWN["kernels"]), extra=of_gpu)
        bench = open_bench(device)
        yield bench
        bench.close()


@pytest.mark.parametrize(
    "case",
    [
        case
        for kernel in KERNELS
        for case in cases_of(kernel)
        if sum(array.size for array in case.launch().arrays.values()) < MOST_ELEMENTS
    ],
    ids=lambda case: case.id,
)
def test_rotations(bench: Bench, case: Case) -> None:
    launch = case.launch()
    prepared = bench.prepare(case.spec, launch)
    prepared.run(bench.device)
    actual = bench.results(case, launch, prepared)
    bench.tidy()
    with np.errstate(all="ignore"):
        check_outputs(case, launch, expected(case.spec, launch), actual)


@pytest.mark.parametrize("case", [case for kernel in KERNELS for case in batches_of(kernel)], ids=lambda case: case.id)
def test_rows_are_invariant(bench: Bench, case: Case) -> None:
    """A row has the same bits alone and beside others."""
    assert not first_difference(bench, case, FEW_ROWS)
