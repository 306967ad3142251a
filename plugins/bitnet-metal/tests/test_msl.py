"""The kernels' text: a linter for rules that clang does not check, and mutants that it or clang must reject."""

from __future__ import annotations

from functools import cache

import pytest
from bitnet_hal.device import DeviceInfo, DeviceType, Tuning
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.base import MATMUL_TERNARY
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.cases.tuned import tuned_cases
from bitnet_hal.tuning.query import TuningQuery
from bitnet_metal.compile import FOLDER, source
from bitnet_metal.describe import OPTIONAL
from bitnet_metal.tuning import FAMILIES, MAX_WIDTH, candidate_tunings, select_tuning
from emulator import msl
from emulator.lint import complaints


def info(family: str) -> DeviceInfo:
    return DeviceInfo("metal", 0, "a GPU", DeviceType.INTEGRATED, kernels=OPTIONAL, extra={"family": family})


@cache
def sources() -> dict[str, tuple[KernelSpec, Tuning]]:
    """Every text that the kit's cases compile on some family."""
    found = {}
    for name, spec in CATALOGUE.items():
        for case in cases_of(name) if spec.base or name in OPTIONAL else ():
            launch = case.launch()
            for family in FAMILIES:
                try:
                    tunings = candidate_tunings(TuningQuery(spec, launch.constants, launch.params, info(family)))
                except UnsupportedError:
                    continue
                found |= {source(spec, launch.constants, tuning): (spec, tuning) for tuning in tunings}
    return found


def one(kernel: str, variant: str = "") -> tuple[str, KernelSpec, Tuning]:
    return next(
        (text, *about) for text, about in sources().items() if (about[0].name, about[1].variant) == (kernel, variant)
    )


def test_no_complaint_about_any_kernel() -> None:
    found = {about[0].name: wrong for text, about in sources().items() if (wrong := complaints(text, *about))}
    assert found == {}
    used = {f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name for spec, tuning in sources().values()}
    assert used == {path.stem for path in FOLDER.glob("*.metal")}, "every kernel file is used, and looked at"


REFUSED = [  # what, kernel, variant, what stands there, the mutant's
    ("a double", "rms_norm", "", "float sum = 0.0f", "double sum = 0.0"),
    ("a pointer without address space", "matmul_ternary", "", "device const uint *w, device", "const uint *w, device"),
    ("the same in a struct", "glu_norm_quantize", "", "    device const float *up;", "    const float *up;"),
    ("a cast without address space", "matmul_dense", "", "(device const float4 *)row", "(const float4 *)row"),
    ("a reference without address space", "norm_matmul", "", "thread int &total", "int &total"),
    ("a local pointer without address space", "rms_norm", "", "device const float *row =", "const float *row ="),
    ("two buffers with one index", "rms_norm", "", "[[buffer(1)]]", "[[buffer(0)]]"),
    ("another order than the host's", "rms_norm", "", "float *gamma [[buffer(2)]]", "float *weight [[buffer(2)]]"),
    ("an input that is not const", "rms_norm", "", "device const float *x [[", "device float *x [["),
    ("an output that is const", "rms_norm", "", "device float *y [[", "device const float *y [["),
    ("an element of another size", "rms_norm", "", "device const int *index [[", "device const ushort *index [["),
    ("a buffer in constant memory", "rms_norm", "", "device const int *index [[", "constant int *index [["),
    ("no parameters", "rms_norm", "", ",\n                     constant Params &p [[buffer(4)]]", ""),
    ("a function constant of another type", "rms_norm", "", "constant uint GROUP [[", "constant bool GROUP [["),
    ("a function constant with another index", "rms_norm_quantize", "", "function_constant(1)", "function_constant(7)"),
    ("memory sized by a function constant", "rms_norm", "", "room[32]", "room[GROUP]"),
    ("too much threadgroup memory", "matmul_ternary", "tiled", "tile_y[2048]", "tile_y[8192]"),
    ("memory in a helper", "rms_norm", "", "    float part =", "    threadgroup int own[1];\n    float part ="),
    ("an unknown function", "matmul_ternary", "", "simd_sum(", "simd_reduce_add("),
    ("WGSL's integer dot product", "matmul_ternary", "", "return dot(float4", "return dot4I8Packed(float4"),
    ("a type of a later language", "matmul_ternary", "tiled", "simdgroup_half8x8", "simdgroup_bfloat8x8"),
    ("a barrier for no memory", "rms_norm", "", "mem_flags::mem_threadgroup", "mem_flags::mem_none"),
    ("a function called main", "rms_norm", "", "kernel void rms_norm(", "kernel void main("),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "variant", "good", "bad"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_the_linter_refuses(kernel: str, variant: str, good: str, bad: str) -> None:
    text, spec, tuning = one(kernel, variant)
    assert good in text
    assert complaints(text.replace(good, bad, 1), spec, tuning)


@pytest.mark.parametrize("family", [5, 6])
def test_older_families_lack_what_products_need(family: int) -> None:
    assert any("needs apple7" in wrong for wrong in complaints(*one("matmul_ternary", "tiled"), family=family))


MIXED = [
    ("device memory for threadgroup memory", "rms_norm", "group_sum(sum, room, tid)", "group_sum(sum, y, tid)"),
    (
        "threadgroup memory for device memory",
        "rms_norm",
        "y[group.x * p.width + k] =",
        "device uint *wrong = room; y[k] =",
    ),
    (
        "constant memory for device memory",
        "rms_norm",
        "device const float *row =",
        "device const float *row = &p.eps; row =",
    ),
    ("a write to what is only read", "rms_norm", "float factor =", "gamma[0] = 1.0f; float factor ="),
]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(("kernel", "good", "bad"), [row[1:] for row in MIXED], ids=[row[0] for row in MIXED])
def test_clang_refuses_mixed_address_spaces(kernel: str, good: str, bad: str) -> None:
    text, _, _ = one(kernel)
    assert good in text
    with pytest.raises(msl.CompileError, match="error:"):
        msl.library(text.replace(good, bad, 1))


def test_rows_too_wide_for_exact_sums_are_refused() -> None:
    params = {"rows": 1, "outs": 1, "width": MAX_WIDTH + 1, "y_stride": 1, "y_first": 0}
    with pytest.raises(UnsupportedError, match="exact"):
        select_tuning(TuningQuery(MATMUL_TERNARY, {"ADD": 0}, params, info("apple7")))
    assert 2 * 128 * MAX_WIDTH < 1 << 24, "every sum of that many products of a code and an activation is exact in f32"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_product_has_two_to_six_tilings(family: str) -> None:
    for name in ("matmul_ternary", "matmul_ternary_block", "matmul_dense", "norm_matmul", "norm_matmul_glu"):
        launch = tuned_cases(name)[0].launch()
        offered = candidate_tunings(TuningQuery(CATALOGUE[name], launch.constants, launch.params, info(family)))
        assert 2 <= len({tuning.key for tuning in offered}) == len(offered) <= 6
        assert all(tuning.private["GROUP"] % 32 == 0 for tuning in offered)
