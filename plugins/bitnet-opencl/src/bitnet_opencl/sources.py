"""Kernel sources: finding, assembling and checking them."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from importlib.resources import files

from bitnet_core.errors import BitnetError

EXTRA_ARGUMENTS = {"attention_split": 1, "rope_attention": 1, "argmax_advance_split": 1}
"""Arguments of a kernel behind those of the catalogue: memory for what its groups hand to each other."""


class SourceProblem(Enum):
    """What a check of a source may find."""

    NO_KERNELS_FOUND = "NoKernelsFound"
    EMPTY_ARG_LIST = "EmptyArgList"
    ARG_COUNT_MISMATCH = "ArgCountMismatch"
    DUPLICATE_KERNEL_NAME = "DuplicateKernelName"


class KernelValidationError(BitnetError):
    """A kernel source does not have the form it must have."""

    def __init__(self, problem: SourceProblem, detail: str) -> None:
        super().__init__(f"{problem.value}: {detail}")
        self.problem = problem


@cache
def kernel_source(stem: str) -> str:
    """The prelude and one kernel file, with what it includes put in."""
    folder = files("bitnet_opencl") / "kernels"
    source = "\n".join((folder / f"{name}.cl").read_text(encoding="utf-8") for name in ("prelude", stem))

    def included(match: re.Match[str]) -> str:
        return expanded((folder / match[1]).read_text(encoding="utf-8"))

    def expanded(text: str) -> str:
        return re.sub(r'^#include "(\w+\.clh)"$', included, text, flags=re.MULTILINE)

    return expanded(source)


def validate_kernel_source(source: str, arguments: int) -> list[str]:
    """Names of the kernels in an OpenCL C source, all of which must take `arguments` arguments.

    A binding written IN(...) or OUT(...) is one argument. KernelValidationError says what is wrong.
    """
    source = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    names: list[str] = []
    for match in re.finditer(r"\b(?:__)?kernel\s+void\s+(\w+)\s*\(", source):
        name, count = match[1], _count_arguments(source, match.end())
        if name in names:
            raise KernelValidationError(SourceProblem.DUPLICATE_KERNEL_NAME, name)
        if count == 0:
            raise KernelValidationError(SourceProblem.EMPTY_ARG_LIST, name)
        if count != arguments:
            raise KernelValidationError(
                SourceProblem.ARG_COUNT_MISMATCH, f"{name} takes {count} arguments, not {arguments}"
            )
        names.append(name)
    if not names:
        raise KernelValidationError(SourceProblem.NO_KERNELS_FOUND, "the source has no __kernel function")
    return names


def _count_arguments(source: str, start: int) -> int:
    """Arguments of the list that opens just before `start`."""
    depth, end = 1, start
    commas = 0
    while depth and end < len(source):
        character = source[end]
        depth += (character == "(") - (character == ")")
        commas += depth == 1 and character == ","
        end += 1
    listed = source[start : end - 1].strip()
    return 0 if listed in ("", "void") else commas + 1
