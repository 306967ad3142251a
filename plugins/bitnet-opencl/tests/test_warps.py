"""The sources for NVIDIA's warps that need no tensor cores, on any OpenCL device: the portable dialect exchanges values
through local memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from bitnet_hal.device import Tuning
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
def bench(nvidia_bench: Callable[..., AbstractContextManager[Bench]]) -> Iterator[Bench]:
    with nvidia_bench(portable_source) as made:
        yield made


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
