"""Every kernel compiled by clang for every AMD architecture: it builds, needs no scratch memory, has what is claimed.

clang 19 stands for hipRTC, which is a clang with ROCm's header files; compiled/hip_builtins.h stands for those.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bitnet_hal.device import Tuning
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_rocm import compile, tuning
from bitnet_rocm.describe import OPTIONAL

HEADER = Path(__file__).parent / "compiled" / "hip_builtins.h"
ARCHITECTURES = ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1200", "gfx1201")
DOT4 = {
    **dict.fromkeys(("gfx906", "gfx90a", "gfx942", "gfx1030"), r"v_dot4c?_i32_i8"),
    **dict.fromkeys(("gfx1100", "gfx1200", "gfx1201"), r"v_dot4_i32_iu8"),
}
SHAPE = {
    "width": 2560,
    "columns": 2560,
    "stride": 2560,
    "outs": 2560,
    "vocab": 32000,
    "n_heads": 20,
    "n_kv_heads": 5,
    "head_dim": 128,
    "block": 1024,
    "channels": 10240,
    "taps": 4,
    "n_key_heads": 4,
    "key_dim": 128,
    "value_dim": 128,
    "groups": 4,
}
DOT_PRODUCTS = ("matmul_ternary", "matmul_ternary_block", "norm_matmul", "norm_matmul_glu")
MATRIX = {
    "gfx90a": "v_mfma_i32_16x16x16i8",
    "gfx942": "v_mfma_i32_16x16x32_i8",
    **dict.fromkeys(("gfx1100", "gfx1200", "gfx1201"), "v_wmma_i32_16x16x16_iu8"),
}
EVERY_TUNING = ("gfx90a", "gfx1100")
"""A GPU with waves of 64 threads and one of 32; the others compile each source once, to save time."""
COMMAND = ("clang++-19", "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-std=c++17", "-O3", "-w", "-S")
Variant = tuple[KernelSpec, Tuning, str]


def variants(architecture: str) -> Iterator[Variant]:
    """Every tuning once, and every value of the semantic constants, each with its text."""
    texts = set()
    for spec in CATALOGUE.values():
        if not (spec.base or spec.name in OPTIONAL):
            continue
        longest = max((len(values) for values in spec.constants.values()), default=1)
        diagonal = [{name: values[i % len(values)] for name, values in spec.constants.items()} for i in range(longest)]
        values = itertools.product(*spec.constants.values())
        every = [dict(zip(spec.constants, each, strict=True)) for each in values]
        seen = set()
        for rows, constants in itertools.product((1, 2, 4, 8, 16, 64, 512), diagonal + every):
            try:
                own, *others = tuning.candidate_tunings(spec, constants, {"rows": rows, **SHAPE}, 60, architecture)
            except UnsupportedError:
                assert not spec.base
                continue
            again = [own] if rows in (1, 512) and constants in diagonal else []
            for tuned in [*again, *(one for one in (own, *others) if one.key not in seen)]:
                text = compile.source(spec, constants, tuned)
                if text not in texts and (architecture in EVERY_TUNING or (spec.name, tuned.variant) not in texts):
                    yield spec, tuned, text
                texts |= {text, (spec.name, tuned.variant)}
                seen.add(tuned.key)
    gates, constants, shape = CATALOGUE["matmul_dense"], {"DTYPE": 1}, {"rows": 1, **SHAPE, "outs": 96}
    tuned = tuning.select_tuning(gates, constants, shape, 60, architecture)
    yield gates, tuned, compile.source(gates, constants, tuned)


def assembly(text: str, architecture: str, wave: int) -> str:
    """Return clang's output for a kernel. wave: threads of a wave, 0 for the compiler's choice."""
    width = [option.decode() for option in compile.options(architecture, wave) if b"wavefront" in option]
    command = [*COMMAND, f"--offload-arch={architecture}", *width, "-include", str(HEADER), "-o", "-", "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:3000]
    return result.stdout


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_become_the_instructions_that_are_claimed(architecture: str) -> None:
    if shutil.which("clang++-19") is None:
        pytest.skip("it needs clang++-19 (apt install clang-19)")
    chosen = list(variants(architecture))
    with ThreadPoolExecutor(2) as pool:
        compiled = list(
            pool.map(lambda one: assembly(one[2], architecture, one[1].private.get(tuning.WAVE, 0)), chosen)
        )
    for (spec, tuned, _), text in zip(chosen, compiled, strict=True):
        what = f"{spec.name} {tuned} for {architecture}"
        width = re.search(r"\.wavefront_size:\s+(\d+)", text)
        assert width is not None
        assert int(width[1]) == tuned.private.get(tuning.WAVE, 64 if architecture.startswith("gfx9") else 32), what
        assert re.search(r"\.vgpr_spill_count:\s+0\b", text), f"{what} spills vector registers"
        # scalar registers that spill go to lanes of vector registers, not to memory
        assert re.search(r"\.private_segment_fixed_size:\s+0\b", text), f"{what} keeps something in scratch memory"
        if tuned.variant == "matrix":
            assert MATRIX[architecture] in text, f"{what} has no products of matrices"
        elif spec.name in DOT_PRODUCTS:
            assert re.search(DOT4[architecture], text), f"{what} has no dot products of four bytes"
    unused = {path.name for folder in compile.FOLDERS for path in folder.glob("*.cu")}
    unused -= {f"{spec.name}_{tuned.variant}.cu" if tuned.variant else f"{spec.name}.cu" for spec, tuned, _ in chosen}
    kind = "tile" if architecture in MATRIX else "matrix"
    cuda_only = "attention_split.cu"  # bitnet-cuda's tuning alone asks for it
    assert unused == {f"matmul_ternary_{kind}.cu", f"matmul_ternary_block_{kind}.cu", cuda_only}
