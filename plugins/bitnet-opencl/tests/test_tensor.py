"""The sources for NVIDIA's tensor cores, with their instructions emulated on any OpenCL device
(emulated/tensor.clh)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from bitnet_hal.device import Tuning
from bitnet_hal.driver.sources import with_includes
from bitnet_hal.families.opencl_c import program_source
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.testing.cases.case import Case, expected
from bitnet_hal.testing.cases.registry import all_cases, batches_of, cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_hal.testing.rules.invariance import first_difference
from bitnet_hal.testing.workbench import Bench
from bitnet_hal.tuning.query import FEW_ROWS
from bitnet_opencl import clc
from bitnet_opencl.clc.nvidia_tuning import BATCH_ROWS, NARROW_OUTS

EMULATED = (Path(__file__).parent / "emulated" / "tensor.clh").read_text(encoding="utf-8")
COLLECTIVE = (
    "multiply_block",
    "load_pair",
    "load_few",
    "load_part",
    "sum_parts",
    "add_products",
    "multiply_rows",
    "multiply_pair",
    "exchange_words",
)
"""Functions in which lanes exchange values."""
KERNELS = ("matmul_ternary", "matmul_ternary_block", "matmul_dense", "norm_matmul", "norm_matmul_glu", "attention")


def emulated_source(folders: Sequence[Path], spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Return the program with the portable dialect, and with local memory through which lanes exchange values."""
    text = program_source(clc.NVIDIA, spec, constants, tuning)
    nvidia, tensor = (with_includes(clc.NVIDIA, name, backend="opencl") for name in ("dialect.clh", "tensor.clh"))
    assert tensor in text
    portable = with_includes(clc.PORTABLE, "dialect.clh", backend="opencl")
    text = text.replace(nvidia, portable).replace(tensor, EMULATED)
    text = text.replace("    PARAMETERS\n", "    PARAMETERS\n    __local uint exchanged[GROUP * 8];\n")
    text = text.replace(
        "over_row(float v, bool largest)", "over_row_of(float v, bool largest, __local uint *exchanged)"
    )
    text = text.replace(
        "const float other = shuffle_xor_float(v, mask);", "const float other = shuffle_of(v, mask, exchanged);"
    )
    text = text.replace(
        "KERNEL attention", "#define over_row(v, largest) over_row_of(v, largest, exchanged)\nKERNEL attention"
    )
    for name in COLLECTIVE:
        text = text.replace(
            f"INLINE void {name}(",
            f"#define {name}(...) {name}_of(exchanged, __VA_ARGS__)\nINLINE void {name}_of(__local uint *exchanged, ",
        )
    return text.replace('#define UNROLL _Pragma("unroll")', "#define UNROLL")  # hundreds of barriers otherwise


@pytest.fixture(scope="module")
def bench(nvidia_bench: Callable[..., AbstractContextManager[Bench]]) -> Iterator[Bench]:
    with nvidia_bench(emulated_source) as made:
        yield made


def served(case: Case) -> bool:
    """Return whether tensor cores serve the case and a CPU can emulate it in seconds."""
    launch = case.launch()
    rows, p = int(launch.params["rows"]), launch.params
    few = 1 if "matmul" in case.kernel else 8
    if rows <= few or sum(array.size for array in launch.arrays.values()) > 1_000_000:
        return False
    if case.kernel == "matmul_dense" and not (launch.constants["DTYPE"] == 1 and p["width"] % 64 == 0):
        return False
    if case.kernel == "matmul_dense" and (rows > BATCH_ROWS or (rows <= FEW_ROWS and p["outs"] <= NARROW_OUTS)):
        return False
    if case.kernel == "attention":
        return launch.constants["KV"] == 1 and p["head_dim"] in (64, 128)
    return rows * p["outs"] * p["width"] < 7_000_000


@pytest.mark.parametrize(
    "case", [case for case in all_cases() if case.kernel in KERNELS and served(case)], ids=lambda case: case.id
)
def test_tensor_cores(bench: Bench, case: Case) -> None:
    launch = case.launch()
    bench.launcher.compiled(case.spec, launch.params, launch.constants)  # raises where `prepare` would skip
    prepared = bench.prepare(case.spec, launch)
    assert prepared.compiled.kernel.tuning.variant in ("few", "mma")
    prepared.run(bench.device)
    actual = bench.results(case, launch, prepared)
    bench.tidy()
    check_outputs(case, launch, expected(case.spec, launch), actual)


LAYERS = ("rows-4-int8", "rows-3-qwen3-a32", "rows-8", "rows-20", "rows-33-qwen3-a32")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in cases_of("decoder_layer") if case.label in LAYERS], ids=lambda case: case.id
)
def test_layers_of_several_rows(bench: Bench, case: Case) -> None:
    """A CPU runs one work-group at a time, so there is only one."""
    info = bench.device.info
    bench.device.info = replace(info, extra={**info.extra, "members": 1})
    try:
        launch = case.launch()
        prepared = bench.prepare(case.spec, launch)
        assert prepared.compiled.kernel.tuning.variant in ("few", "batch")
        prepared.run(bench.device)
        actual = bench.results(case, launch, prepared)
    finally:
        bench.device.info = info
        bench.tidy()
    check_outputs(case, launch, expected(case.spec, launch), actual)


TERNARY_BATCHES = [case for kernel in KERNELS[:2] for case in batches_of(kernel)]
HEADS = [case for case in batches_of("matmul_dense") if case.label == "batch-head"]


@pytest.mark.parametrize("case", TERNARY_BATCHES + HEADS, ids=lambda case: case.id)
def test_rows_of_a_batch_are_invariant(bench: Bench, case: Case) -> None:
    """A row has the same bits alone and beside others, in launches that share the tuning of eight rows."""
    bench.launcher.tuned_rows = FEW_ROWS
    try:
        assert not first_difference(bench, case, FEW_ROWS)
    finally:
        bench.launcher.tuned_rows = 0
