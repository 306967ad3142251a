"""MSL as C++: signatures are read from the text, kernels become functions that run a grid of fibers."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FIBERS = HERE.parents[2] / "bitnet-cuda/tests/emulator"
"""simt.h is there."""
CONSTANT = re.compile(r"^constant (\w+) (\w+) \[\[function_constant\((\d+)\)\]\];", re.M)
KERNEL = re.compile(r"\bkernel void (\w+)\(([^{]*)\)\s*\{")
ATTRIBUTE = re.compile(r"\[\[(\w+)(?:\((\d+)\))?\]\]")
SHARED = re.compile(r"^(\s+)(threadgroup [\w ]+\w(?:\[[^\]]+\])*;)", re.M)
BUILT_IN = {
    "threadgroup_position_in_grid": "uint3{simt::block->index.x, simt::block->index.y, simt::block->index.z}",
    "thread_index_in_threadgroup": "simt::block->current",
    "thread_index_in_simdgroup": "simt::lane()",
    "simdgroup_index_in_threadgroup": "simt::block->current / simt::WARP",
}


class CompileError(Exception):
    """A compiler's error, with its message."""


@dataclass(frozen=True)
class Argument:
    """A parameter of a kernel: `declared` without its attribute, and the attribute's name and index (-1 for none)."""

    declared: str
    attribute: str
    index: int

    @property
    def name(self) -> str:
        return self.declared.rpartition(" ")[2].lstrip("*&")


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def arguments_of(text: str) -> dict[str, list[Argument]]:
    """Return the parameters by kernel."""
    found = {}
    for name, inside in KERNEL.findall(without_comments(text)):
        arguments = []
        for part in inside.split(","):
            attribute = ATTRIBUTE.search(part)
            if attribute is None:
                raise CompileError(f"error: an argument of {name} has no attribute: {part.strip()}")
            index = int(attribute[2]) if attribute[2] else -1
            arguments.append(Argument(" ".join(part[: attribute.start()].split()), attribute[1], index))
        found[name] = arguments
    return found


def _given(argument: Argument) -> str:
    if argument.attribute != "buffer":
        return BUILT_IN[argument.attribute]
    kind = argument.declared.removesuffix(argument.name)
    pointer = kind.replace("&", "*")
    return f"{'*' if '&' in kind else ''}({pointer})a[{argument.index}]"


def as_cpp(text: str) -> str:
    """The translation unit: function constants as variables that are set before a launch."""
    bare = CONSTANT.sub(r'extern "C" { \1 \2; }', without_comments(text))
    bare = ATTRIBUTE.sub("", SHARED.sub(r"\1static \2", bare))
    runs = []
    for name, arguments in arguments_of(text).items():
        call = f"{name}({', '.join(map(_given, arguments))})"
        runs.append(
            f"static void thread_of_{name}(void **a) {{ {call}; }}\n"
            f'extern "C" bool run_{name}(void **a, const simt::Dim *grid, unsigned threads) {{'
            f" return simt::launch(thread_of_{name}, a, *grid, {{threads, 1, 1}}); }}"
        )
    return "\n".join([bare, *runs, ""])


@cache
def library(text: str) -> Library:
    """Compiled once in a process, and found again by later ones with the same folder of temporary files."""
    source = as_cpp(text)
    header = (HERE / "metal_stdlib").read_text() + (FIBERS / "simt.h").read_text()
    folder = Path(tempfile.gettempdir()) / "bitnet-msl-on-cpu"
    folder.mkdir(exist_ok=True)
    built = folder / (hashlib.sha256((header + source).encode()).hexdigest()[:32] + ".so")
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            unit, made = Path(scratch) / "unit.cpp", Path(scratch) / "unit.so"
            unit.write_text(source)
            flags = ["-std=c++20", "-O1", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off", "-fPIC", "-shared", "-w"]
            command = ["clang++-19", *flags, f"-I{HERE}", f"-I{FIBERS}", "-o", str(made), str(unit)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise CompileError(run.stderr)
            made.rename(built)
    return Library(text, ctypes.CDLL(str(built)))


@dataclass(frozen=True, eq=False)
class Library:
    """A compiled text."""

    text: str
    native: ctypes.CDLL

    @property
    def kernels(self) -> dict[str, list[Argument]]:
        return arguments_of(self.text)

    @property
    def constants(self) -> list[tuple[str, str, int]]:
        """Type, name and index of each function constant."""
        return [(kind, name, int(index)) for kind, name, index in CONSTANT.findall(self.text)]

    def run(
        self, name: str, constants: Mapping[str, int], buffers: Mapping[int, int], grid: Sequence[int], threads: int
    ) -> None:
        """Run the kernel. buffers: addresses by index. Raises RuntimeError if threads diverge at a barrier or simdgroup
        operation."""
        for constant, value in constants.items():
            ctypes.c_uint.in_dll(self.native, constant).value = value
        addresses = (ctypes.c_void_p * 32)(*(buffers.get(i) for i in range(32)))
        function = self.native[f"run_{name}"]
        function.restype = ctypes.c_bool
        if not function(addresses, (ctypes.c_uint * 3)(*grid), ctypes.c_uint(threads)):
            raise RuntimeError(f"{name}: not every thread reached a barrier or simdgroup operation")
