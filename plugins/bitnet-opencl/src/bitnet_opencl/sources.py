"""Kernel sources: finding, assembling and checking them."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from importlib.resources import files

from bitnet_core.errors import BitnetError

EXTRA_ARGUMENTS = {"attention_split": 1, "rope_attention": 1, "argmax_advance_split": 1, "decoder_layer": 1}
"""Arguments of a kernel behind those of the catalogue: memory for what its groups hand to each other."""


_KERNEL = re.compile(r"\b(?:__)?kernel\s+void\s+(\w+)\s*\(")


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

    IN(...) and OUT(...) count as one argument. KernelValidationError says what is wrong.
    """
    source = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    names: list[str] = []
    for match in _KERNEL.finditer(source):
        name, count = match[1], len(_arguments(source, match.end())[0])
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


def with_one_struct(source: str) -> str:
    """The source of one kernel as it is compiled: buffers, then one struct of their offsets and the parameters.

    A launch takes NVIDIA's driver about 0.1 us for each argument, and a token takes 150 launches.
    """
    match = _KERNEL.search(source)
    if match is None:
        raise KernelValidationError(SourceProblem.NO_KERNELS_FOUND, "the source has no __kernel function")
    arguments, end = _arguments(source, match.end())
    buffers, offsets, params, others = [], [], [], []
    for argument in arguments:
        if bound := re.fullmatch(r"(IN|OUT)\((\w+), (\w+)\)", argument):
            access, kind, name = bound.groups()
            buffers.append(f"__global {'const ' if access == 'IN' else ''}{kind} *{name}_buffer")
            offsets.append(("ulong", f"{name}_offset"))
        elif param := re.fullmatch(r"const (uint|float) (\w+)", argument):
            params.append((param[1], param[2]))
        else:
            others.append(argument)
    fields = [*offsets, *params]
    members = " ".join(f"{kind} {name};" for kind, name in fields)
    values = " ".join(f"const {kind} {name} = launch.{name};" for kind, name in fields)
    signature = ", ".join([*buffers, "const launch_arguments launch", *others])
    start = source.rindex("\n", 0, match.start()) + 1
    body = source.index("{", end) + 1
    return (
        f"{source[:start]}typedef struct {{ {members} }} launch_arguments;\n"
        f"{source[start : match.end()]}{signature}) {{\n    {values}{source[body:]}"
    )


def _arguments(source: str, start: int) -> tuple[list[str], int]:
    """The arguments of the list that opens just before `start`, and where it has closed."""
    depth, end, begin = 1, start, start
    found = []
    while depth and end < len(source):
        character = source[end]
        depth += (character == "(") - (character == ")")
        if depth == 0 or (depth == 1 and character == ","):
            found.append(" ".join(source[begin:end].split()))
            begin = end + 1
        end += 1
    return ([] if found in ([""], ["void"]) else found), end
