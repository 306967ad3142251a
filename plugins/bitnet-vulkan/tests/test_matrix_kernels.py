"""The kernels for cooperative matrices on the CPU: their source translated to C++, with the kit's cases.

Mesa's llvmpipe has no such matrices, so this (and matrix_emulation.h) stands in for a GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from bitnet_hal.testing.cases.case import Case, expected
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.compare import check_outputs
from bitnet_vulkan.compile import KERNELS

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TYPES = {
    "float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA": "HalfLeft",
    "float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB": "HalfRight",
    "float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator": "FloatSum",
    "int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA": "ByteLeft",
    "int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB": "ByteRight",
    "int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator": "IntSum",
}
ATTENTION = ("f16-gqa", "large-scores", "prompt-d128", "prompts-d64", "nan-query")
TERNARY = ("t33-n127-k384", "add-t33-n65-k640", "spoiled-rows")
BLOCKS = ("b64-t33-n7-k384", "b256-add", "a32-b64-t33-n70-k384", "a32-b128-t70-n130-k256", "a32-spoiled-rows")
BLOCKS += ("a128-t33-n70-k384", "a128-b64-prompt-t150-n320-k1536-add1", "a128-spoiled-rows")


def as_cpp(source: str, constants: Mapping[str, int], count: int) -> str:
    """Translate a kernel with `count` bindings to C++ that reads each from the file of its number, and writes
    `result`."""
    included = [(KERNELS / name).read_text() for name in re.findall(r'#include "(?!prelude)(.*)"', source)]
    source = source.replace("} p;", "\n".join(["} p;", *included]))
    for glsl, cpp in TYPES.items():
        source = source.replace(f"coopmat<{glsl}>", cpp)
    bindings = re.findall(r"layout\(std430, binding = (\d+)\) (?:\w+ )?buffer \w+ \{ (\w+) (\w+)\[\]; \};", source)
    assert {int(number) for number, _, _ in bindings} == set(range(count))
    members = re.search(r"uniform Params \{(.*?)\} p;", source, re.S)
    assert members
    body = source[members.end() :]
    for pattern, replacement in (
        (r"\[\[unroll\]\] ", ""),
        (r"\bout uvec2 (\w+)", r"uvec2 &\1"),
        (r"\bshared ", "static "),
        (r"\b(u?vec[24]|ivec4)\(", r"make_\1("),
        (r"\bfloat16_t\(", "to_float16("),
        (r"\.(xy|zw)\b", r".\1()"),
        (r"(?<=[\])\w])\.([xyzw])\b(?!\()", r".\1_"),
        (r"(gl_\w+)\.([xyz])_", r"\1.\2"),
        (r"void main\(\)", "void kernel()"),
    ):
        body = re.sub(pattern, replacement, body)
    lines = ['#include "matrix_emulation.h"']
    lines += [f"const uint {name} = {value};" for name, value in constants.items()]
    lines += [f"static {kind} *{name};" for _, kind, name in bindings]
    lines += [f"static struct Params {{{members[1]}}} p;", body, "int main(int, char **arguments) {"]
    lines += [f'    {name} = ({kind} *)contents("{number}");' for number, kind, name in bindings]
    last = bindings[-1][2]
    lines += [
        '    p = *(Params *)contents("params");',
        "    gl_NumWorkGroups = {(uint)atoi(arguments[1]), (uint)atoi(arguments[2]), 1};",
        "    run_all(GROUP);",
        '    FILE *file = fopen("result", "wb");',
        f"    fwrite({last}, 1, atol(arguments[3]), file);",
        "    fclose(file);",
        "}",
    ]
    return "\n".join(lines)


DENSE = ("f16-t2-n31-k256", "f16-t16-n130-k320", "head-t6", "head-t33", "f16-t33-n5-k256")
BATCH_TILES = ({"GROUP": 128, "TILE_N": 32, "TILE_T": 16}, {"GROUP": 64, "TILE_N": 16, "TILE_T": 32})
"""Of the kernels for a batch's rows, by turns."""


def chosen() -> list[tuple[Case, dict[str, int]]]:
    """Return (case, tuning) pairs to run."""
    found: list[tuple[Case, dict[str, int]]] = []
    for case in cases_of("attention"):
        if case.label in ATTENTION:
            params = case.launch().params
            heads = int(params["n_heads"]) // int(params["n_kv_heads"])
            tile_n = next(n for n in (4, 2, 1) if heads % n == 0)
            tile = {"GROUP": 128, "TILE_N": tile_n, "TILE_T": 64 // tile_n}
            found.append((case, {**tile, "DIM": int(params["head_dim"])}))
    for case in cases_of("matmul_dense"):
        if case.label in DENSE:
            rows = case.launch().params["rows"]
            found.append((case, {"GROUP": 64, "TILE_N": 64, "TILE_T": 16 if rows <= 16 else 32}))
    for case in (*cases_of("matmul_ternary"), *cases_of("matmul_ternary_block")):
        if case.label in (TERNARY if case.kernel == "matmul_ternary" else BLOCKS):
            found.append((case, {"GROUP": 128, "TILE_N": 64, "TILE_T": 64, "WAVE_T": 32}))
            found.append((case, BATCH_TILES[len(found) // 2 % 2]))
    return found


OPTIONS = ("-std=c++17", "-O1", "-w")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the compiler's command, with the header precompiled, which saves a third of the time."""
    path = shutil.which("g++")
    if path is None:
        pytest.skip("it needs g++ (apt install g++)")
    folder = tmp_path_factory.mktemp("compiled")
    header = ["-x", "c++-header", "-o", str(folder / "matrix_emulation.h.gch"), str(HERE / "matrix_emulation.h")]
    subprocess.run([path, *OPTIONS, *header], check=True)
    return [path, *OPTIONS, f"-I{folder}", f"-I{HERE}"]


@pytest.mark.parametrize(("case", "tuning"), chosen(), ids=lambda value: value.id if isinstance(value, Case) else "")
def test_matrix_kernels(case: Case, tuning: dict[str, int], compiler: list[str], tmp_path: Path) -> None:
    launch = case.launch()
    tiles = "fused" if launch.constants.get("ABLOCK") == 128 else "coop"
    variant = "batch" if tuning in BATCH_TILES or case.kernel == "matmul_dense" else tiles
    source = (KERNELS / f"{case.kernel}_{variant}.comp").read_text()
    constants = {"ADD": 0, **launch.constants, **tuning}
    (tmp_path / "kernel.cpp").write_text(as_cpp(source, constants, len(case.spec.bindings)))
    command = [*compiler, "-o", "kernel", "kernel.cpp", "-lpthread"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:3000]
    for number, binding in enumerate(case.spec.bindings):
        np.ascontiguousarray(launch.arrays[binding.name]).tofile(tmp_path / str(number))
    (tmp_path / "params").write_bytes(case.spec.pack(launch.params))
    last = launch.arrays[case.spec.bindings[-1].name]
    x, y, _ = case.spec.grid(launch.params, tuning | {"SPLITS": 1})
    subprocess.run(["./kernel", str(x), str(y), str(last.nbytes)], cwd=tmp_path, check=True, timeout=120)
    result = np.fromfile(tmp_path / "result", last.dtype).reshape(last.shape)
    actual = launch.arrays | {case.spec.bindings[-1].name: result}
    check_outputs(case, launch, expected(case.spec, launch), actual)
