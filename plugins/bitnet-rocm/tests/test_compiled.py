"""Every kernel compiled by clang for every AMD architecture: it builds, needs no scratch memory, has what is claimed.

clang 19 stands for hipRTC, which is a clang with ROCm's header files; compiled/hip_builtins.h stands for those.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import Tuning
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec
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
}
Variant = tuple[KernelSpec, dict[str, int], Tuning]


def variants(architecture: str) -> Iterator[Variant]:
    """Every tuning once, and every value of the semantic constants."""
    for spec in CATALOGUE.values():
        if not (spec.base or spec.name in OPTIONAL):
            continue
        longest = max((len(values) for values in spec.constants.values()), default=1)
        diagonal = [{name: values[i % len(values)] for name, values in spec.constants.items()} for i in range(longest)]
        values = itertools.product(*spec.constants.values())
        every = [dict(zip(spec.constants, each, strict=True)) for each in values]
        seen = []
        for rows, constants in itertools.product((1, 2, 4, 8, 512), diagonal + every):
            try:
                tuned = tuning.choose(spec, constants, {"rows": rows, **SHAPE}, 60, architecture)
            except UnsupportedError:
                assert not spec.base
                continue
            if tuned.key not in seen or (rows == 1 and constants in diagonal):
                yield spec, constants, tuned
            seen.append(tuned.key)


def assembly(variant: Variant, architecture: str, folder: Path) -> str:
    """What clang makes of a kernel, as text."""
    spec, constants, tuned = variant
    source, output = folder / "kernel.hip", folder / "kernel.s"
    source.write_text(compile.source(spec, constants, tuned))
    command = [
        "clang++-19",
        "-x",
        "hip",
        "--cuda-device-only",
        f"--offload-arch={architecture}",
        "-nogpuinc",
        "-nogpulib",
    ]
    command += ["-std=c++17", "-O3", "-w", "-include", str(HEADER), "-S", "-o", str(output), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{spec.name} {dict(tuned.tile)} {constants}: {result.stderr[:3000]}"
    return output.read_text()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_become_the_instructions_that_are_claimed(architecture: str, tmp_path: Path) -> None:
    if shutil.which("clang++-19") is None:
        pytest.skip("clang++-19 is not installed")
    done = set()
    for variant in variants(architecture):
        spec, constants, tuned = variant
        if architecture not in ("gfx90a", "gfx1100") and (spec.name, tuned.variant) in done:
            continue  # every tuning for one GPU with waves of 64 threads and one of 32; each source for the others
        done.add((spec.name, tuned.variant))
        text = assembly(variant, architecture, tmp_path)
        what = f"{spec.name} {dict(tuned.tile)} {constants} for {architecture}"
        assert re.search(r"\.vgpr_spill_count:\s+0\b", text), f"{what} spills vector registers"
        # scalar registers that spill go to lanes of vector registers, not to memory
        assert re.search(r"\.private_segment_fixed_size:\s+0\b", text), f"{what} keeps something in scratch memory"
        if spec.name in ("matmul_ternary", "matmul_ternary_block"):
            assert re.search(DOT4[architecture], text), f"{what} has no dot products of four bytes"
    sources = {f"{name}_{kind}.cu" if kind else f"{name}.cu" for name, kind in done}
    assert sources == {path.name for folder in compile.FOLDERS for path in folder.glob("*.cu")}
