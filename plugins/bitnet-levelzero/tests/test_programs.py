"""The SPIR-V in the wheel: made of today's kernels, valid, and taken by Intel's compiler for three families of GPUs."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from bitnet_hal.plugin import DeviceInfo, DeviceType, TuningQuery
from bitnet_hal.testing.cases.tuned import tuned_cases
from bitnet_levelzero.compile import archive
from bitnet_levelzero.tuning import candidate_tunings, program_name

TOOL = Path(__file__).parents[1] / "tools" / "build_programs.py"
SPILLS = "Token 18\n"
"""Line of ocloc's output for a program that needs scratch memory (PATCH_TOKEN_MEDIA_VFE_STATE)."""
FAMILIES = {"dg2": slice(None), "tgllp": slice(0, None, 2), "adlp": slice(1, None, 2)}
"""And which programs are compiled for each: the last two have the same cores, and share those that launches select; the
others, which `bitnet tune` measures, are compiled for the first."""


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return loaded(TOOL)


def test_the_binding_is_what_the_declarations_say() -> None:
    api = loaded(TOOL.with_name("build_api.py"))
    assert api.MODULE.read_text(encoding="utf-8") == api.module()
    functions = api.HEADER.read_text(encoding="utf-8").count("(") - 1  # less the bracket of the head's remark
    assert f"| calls | {functions} functions" in (TOOL.parents[1] / "README.md").read_text(encoding="utf-8")


def needs(*commands: str) -> None:
    """Skip if a command is missing, or fail in CI."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing and os.environ.get("CI") == "true":
        raise AssertionError(f"{missing} must be there in CI")
    if missing:
        packages = "clang-15 llvm-15 llvm-spirv-15 spirv-tools intel-opencl-icd"
        pytest.skip(f"it needs {', '.join(missing)} (apt install {packages})")


def test_the_archive_has_the_listed_programs(tool: ModuleType) -> None:
    names = [name for name, *_ in tool.programs()]
    assert len(names) == len(set(names))
    assert set(archive()) == set(names)
    readme = (TOOL.parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"| programs | {len(names)}, " in readme


def test_the_archive_is_what_would_be_built_now(tool: ModuleType) -> None:
    """Byte by byte, and every program passes spirv-val."""
    needs("clang-15", "opt-15", "llvm-spirv-15", "spirv-val")
    assert tool.differences(tool.build_all()) == []


def compiled(program: str, family: str, folder: Path) -> tuple[str, str]:
    """(patch tokens, instructions) of a program."""
    own = folder / re.sub(r"\W", "-", program)
    own.mkdir()
    (own / "in.spv").write_bytes(archive()[program])
    ocloc = ["ocloc", "compile", "-file", "in.spv", "-spirv_input", "-device", family, "-output", "out"]
    done = subprocess.run(ocloc, cwd=own, capture_output=True, text=True, check=False)
    made = list(own.glob("*.bin"))
    assert made, f"{program} for {family}: {done.stdout}"
    show = ["ocloc", "disasm", "-file", made[0].name, "-device", family, "-dump", "shown"]
    subprocess.run(show, cwd=own, env={**os.environ, "LD_LIBRARY_PATH": str(folder)}, capture_output=True, check=True)
    listings = (path.read_text(encoding="utf-8", errors="replace") for path in own.glob("shown/*.asm"))
    return (own / "shown" / "PTM.txt").read_text(encoding="utf-8"), "".join(listings)


SPILLING = """
__attribute__((reqd_work_group_size(128, 1, 1))) __kernel void s(__global const float *x, __global float *y, uint n) {
    float a[160];
    #pragma unroll
    for (uint i = 0; i < 160; ++i) a[i] = x[i * n + get_global_id(0)];
    for (uint k = 0; k < n; ++k) {
        #pragma unroll
        for (uint i = 0; i < 160; ++i) a[i] = a[i] * a[(i * 7 + 3) % 160] + (float)k;
    }
    #pragma unroll
    for (uint i = 0; i < 160; ++i) y[i * n + get_global_id(0)] = a[i];
}
"""


def test_spills_can_be_seen(tmp_path: Path) -> None:
    """160 numbers for each work-item are more than there are registers."""
    needs("ocloc")
    (tmp_path / "in.cl").write_text(SPILLING, encoding="utf-8")
    for command in (["compile", "-file", "in.cl", "-output", "out"], ["disasm", "-file", "out_XE_HPG_COREdg2.bin"]):
        where = ["-dump", "shown"] if command[0] == "disasm" else []
        subprocess.run(["ocloc", *command, "-device", "dg2", *where], cwd=tmp_path, capture_output=True, check=True)
    assert SPILLS in (tmp_path / "shown" / "PTM.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", FAMILIES)
def test_intels_compiler_takes_the_programs(family: str, tool: ModuleType, tmp_path: Path) -> None:
    """Without spills, and with dp4a in every ternary product."""
    needs("ocloc")
    library = next(Path("/usr/lib/x86_64-linux-gnu").glob("libiga64.so.1"), None)
    assert library is not None, "ocloc shows no instructions without libiga64"
    (tmp_path / "libiga64.so").symlink_to(library)
    selected = {name for name, *_ in tool.programs([tool.TUNINGS])}
    names = sorted(archive() if family == "dg2" else selected)[FAMILIES[family]]
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(names, pool.map(lambda name: compiled(name, family, tmp_path), names), strict=True))
    assert [name for name, (tokens, _) in results.items() if SPILLS in tokens] == []
    products = {name: text for name, (_, text) in results.items() if name.startswith("matmul_ternary")}
    assert products
    assert [name for name, text in products.items() if "dp4a" not in text] == []


@pytest.mark.parametrize(("subgroups", "widths"), [("8 16 32", {0, 8, 16, 32}), ("16 32", {0, 16, 32})])
def test_every_product_has_two_to_six_tilings(subgroups: str, widths: set[int]) -> None:
    """And a program for each; subgroups have only widths that the GPU has."""
    info = DeviceInfo("level-zero", 0, "a GPU", DeviceType.GPU, extra={"subgroups": subgroups})
    found: set[int] = set()
    for case in itertools.chain.from_iterable(map(tuned_cases, ("matmul_ternary", "matmul_ternary_block"))):
        launch = case.launch()
        offered = candidate_tunings(TuningQuery(case.spec, launch.constants, launch.params, info))
        assert 2 <= len({tuning.key for tuning in offered}) == len(offered) <= 6
        assert {program_name(case.spec, launch.constants, tuning) for tuning in offered} <= set(archive())
        found |= {tuning.private.get("SUBGROUP", 0) for tuning in offered}
    assert found == widths
