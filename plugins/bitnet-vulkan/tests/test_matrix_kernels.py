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
    "float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB": "NarrowRight",
    "float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator": "FloatSum",
    "float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator": "NarrowSum",
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
    prelude = (KERNELS / "prelude.glsl").read_text().partition("const uint KV_BLOCK = 64;")[2]
    prelude = re.sub(r"#ifdef SUBGROUP\n#define LID.*?#endif", "", prelude, flags=re.S)
    source = source.replace('#include "prelude.glsl"', prelude)
    while included := re.search(r'#include "(.*?)"', source):
        source = source.replace(included[0], (KERNELS / included[1]).read_text(), 1)
    for glsl, cpp in TYPES.items():
        source = source.replace(f"coopmat<{glsl}>", cpp)
    bindings = re.findall(r"layout\(std430, binding = (\d+)\) (?:\w+ )?buffer \w+ \{ (\w+) (\w+)\[\]; \};", source)
    assert {int(number) for number, _, _ in bindings} == set(range(count))
    members = re.search(r"uniform Params \{(.*?)\} p;", source, re.S)
    assert members
    body = source
    for pattern, replacement in (
        (r"^(#version|#extension|layout\(std430).*\n", ""),
        (r"layout\(push_constant\).*?\} p;", ""),
        (r"\[\[(dont_)?unroll\]\] ", ""),
        (r"\bout (\w+ \w+\[)", r"\1"),
        (r"\b(in)?out (\w+) (\w+)", r"\2 &\3"),
        (r"\bshared ", "static "),
        (r"\b(u?vec[24]|ivec4)\(", r"make_\1("),
        (r"\bfloat16_t\(", "to_float16("),
        (r"\bf16vec2\(", "make_vec2("),
        (r"\.(xy|zw)\b", r".\1()"),
        (r"(?<=[\])\w])\.([xyzw])\b(?!\()", r".\1_"),
        (r"(gl_\w+)\.([xyz])_", r"\1.\2"),
        (r"void main\(\)", "void kernel()"),
    ):
        body = re.sub(pattern, replacement, body, flags=re.M | re.S if "push" in pattern else re.M)
    lines = ['#include "matrix_emulation.h"']
    lines += [f"const uint {name} = {value};" for name, value in constants.items()]
    lines += [f"static {kind} *{name};" for _, kind, name in bindings]
    lines += [f"static struct Params {{{members[1]}}} p;", body, "int main(int, char **arguments) {"]
    lines += [f'    {name} = ({kind} *)contents("{number}");' for number, kind, name in bindings]
    lines += [
        '    p = *(Params *)contents("params");',
        "    gl_NumWorkGroups = {(uint)atoi(arguments[1]), (uint)atoi(arguments[2]), 1};",
        "    run_all(GROUP);",
        "    store_results();",
        "}",
    ]
    return "\n".join(lines)


DENSE = ("f16-t2-n31-k256", "f16-t16-n130-k320", "head-t6", "head-t33", "f16-t33-n5-k256")
APPROX = ("l8-n500-k256", "l9-n300-k2560", "l64-n300-k640", "stride", "spoiled")
BATCH_TILES = ({"GROUP": 128, "TILE_N": 32, "TILE_T": 16}, {"GROUP": 64, "TILE_N": 16, "TILE_T": 32})
"""Of the kernels for a batch's rows, by turns."""
WIDE_TILES = ({"GROUP": 128, "TILE_N": 32, "TILE_T": 8}, {"GROUP": 64, "TILE_N": 16, "TILE_T": 16})
"""Of those whose operands are made in registers."""


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
    for case in cases_of("approx_logits"):
        if case.label in APPROX:
            rows = case.launch().params["rows"]
            found.append((case, {"GROUP": 64, "TILE_N": 64, "TILE_T": 16 if rows <= 16 else 32}))
    for case in (*cases_of("matmul_ternary"), *cases_of("matmul_ternary_block")):
        if case.label in (TERNARY if case.kernel == "matmul_ternary" else BLOCKS):
            found.append((case, {"GROUP": 128, "TILE_N": 64, "TILE_T": 64, "WAVE_T": 32}))
            found.append((case, BATCH_TILES[len(found) // 2 % 2]))
            if case.kernel == "matmul_ternary":
                found.append((case, WIDE_TILES[len(found) % 2]))
    return found


OPTIONS = ("-std=c++20", "-O1", "-w")


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
    variant = "batch" if tuning in BATCH_TILES or case.kernel in ("matmul_dense", "approx_logits") else tiles
    if tuning in WIDE_TILES:
        variant = "wide"
    run(case, variant, tuning, compiler, tmp_path)


LAYERS = ("rows-4", "rows-4-int8", "rows-7", "nan")
LAYERS += ("qwen3-b64", "qwen3-b256", "rows-4-qwen3-a128", "rows-6-qwen3-a32")


@pytest.mark.parametrize(
    "case", [case for case in cases_of("decoder_layer") if case.label in LAYERS], ids=lambda case: case.label
)
def test_layers(case: Case, compiler: list[str], tmp_path: Path) -> None:
    """A single workgroup has all parts of the layer."""
    params = {name: int(value) for name, value in case.launch().params.items()}
    heads = params["n_heads"] // params["n_kv_heads"]
    shape = {"WIDTH": params["hidden"], "FFN": params["ffn"], "HEADS": heads, "KV_HEADS": params["n_kv_heads"]}
    shape["DIM"] = params["head_dim"]
    tuning = {**shape, "GROUP": 128, "ROOM": 8, "LANES": 2, "BATCH": 1, "MEMBERS": 1}
    variant = "block" if case.launch().constants["BLOCK"] else "matrix"
    run(case, variant, tuning, compiler, tmp_path)


def run(case: Case, variant: str, tuning: dict[str, int], compiler: list[str], folder: Path) -> None:
    """Compile and run a case, and compare its results."""
    launch = case.launch()
    source = (KERNELS / f"{case.kernel}_{variant}.comp").read_text()
    constants = {"ADD": 0, **launch.constants, **tuning}
    numbers = {binding.name: str(number) for number, binding in enumerate(case.spec.bindings)}
    for name, number in numbers.items():
        np.ascontiguousarray(launch.arrays[name]).tofile(folder / number)
    if case.kernel == "decoder_layer":
        np.zeros(1 << 22, np.uint8).tofile(folder / str(len(numbers)))  # the workspace
    (folder / "kernel.cpp").write_text(as_cpp(source, constants, len(numbers) + (case.kernel == "decoder_layer")))
    command = [*compiler, "-o", "kernel", "kernel.cpp", "-lpthread"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, "\n".join(line for line in built.stderr.splitlines() if "error:" in line)
    (folder / "params").write_bytes(case.spec.pack(launch.params))
    x, y, _ = case.spec.grid(launch.params, tuning | {"SPLITS": 1})
    subprocess.run(["./kernel", str(x), str(y)], cwd=folder, check=True, timeout=120)
    made = {
        name: np.fromfile(folder / f"{number}.result", launch.arrays[name].dtype).reshape(launch.arrays[name].shape)
        for name, number in numbers.items()
    }
    check_outputs(case, launch, expected(case.spec, launch), made)
