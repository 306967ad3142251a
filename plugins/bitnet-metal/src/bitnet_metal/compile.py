"""From a kernel of the catalogue to MSL text, and from text to pipelines."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bitnet_core.hal import Tuning
from bitnet_core.hal.sources import source_text
from bitnet_core.kernels.spec import KernelSpec

from bitnet_metal.driver import BACKEND, Handle, module, pool
from bitnet_metal.errors import converted, refused

FOLDER = Path(__file__).parent / "kernels"
ROOM = "ROOM"
"""The one constant that is a macro: it sizes threadgroup memory, which function constants cannot."""
SIMD = 32
"""Threads of a simdgroup, on every GPU of Apple."""
_TYPES = {"u32": "uint", "f32": "float"}


@dataclass(frozen=True, eq=False, slots=True)
class MetalKernel:
    """Pipelines of one source: the kernel, and after it `_merge` where a workspace stands between the two."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    pipelines: tuple[Handle, ...]


def constants_of(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> dict[str, int]:
    """Function constants, in the order of their indices."""
    values = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    return {name: value for name, value in values.items() if name != ROOM}


def entry_points(spec: KernelSpec, tuning: Tuning) -> tuple[str, ...]:
    """Names of the functions; the second reads what all threadgroups of the first left in the workspace."""
    first = f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name
    return (first, f"{spec.name}_merge") if tuning.workspace else (first,)


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The whole text: function constants, parameters, then the kernel with what it includes."""
    names = enumerate(constants_of(spec, constants, tuning))
    declared = "".join(f"constant uint {name} [[function_constant({i})]];\n" for i, name in names)
    fields = "".join(f"    {_TYPES[param.kind]} {param.name};\n" for param in spec.params)
    room = {ROOM: tuning.private[ROOM]} if ROOM in tuning.private else {}
    text = source_text((FOLDER,), f"{entry_points(spec, tuning)[0]}.metal", room, backend=BACKEND)
    return f"#include <metal_stdlib>\nusing namespace metal;\n{declared}struct Params {{\n{fields}}};\n{text}"


class Compiler:
    """Makes pipelines on one device. Libraries and pipelines are kept; macOS keeps their machine code on disk."""

    def __init__(self, device: Handle, name: str) -> None:
        self._device, self._name = device, name
        self._libraries: dict[str, Handle] = {}
        self._pipelines: dict[tuple[str, str, tuple[int, ...]], Handle] = {}

    def kernel(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> MetalKernel:
        """KernelCompileError with the compiler's text if it does not build."""
        text, values = source(spec, constants, tuning), tuple(constants_of(spec, constants, tuning).values())
        with pool():
            made = tuple(self.pipeline(text, name, values) for name in entry_points(spec, tuning))
        for pipeline in made:
            self._check(pipeline, spec.name, tuning.private["GROUP"])
        return MetalKernel(spec, MappingProxyType(dict(constants)), tuning, made)

    def pipeline(self, text: str, name: str, values: tuple[int, ...]) -> Handle:
        """One function of a library with its constants, usable from indirect command buffers."""
        key = text, name, values
        if key in self._pipelines:
            return self._pipelines[key]
        metal, given = module(), module().MTLFunctionConstantValues.alloc().init()
        for index, value in enumerate(values):
            given.setConstantValue_type_atIndex_(struct.pack("<I", value), metal.MTLDataTypeUInt, index)
        function, error = self._library(text, name).newFunctionWithName_constantValues_error_(name, given, None)
        if function is None:
            raise converted(error, "compile", self._name, kernel=name)
        about = metal.MTLComputePipelineDescriptor.alloc().init()
        about.setComputeFunction_(function)
        about.setSupportIndirectCommandBuffers_(True)
        about.setThreadGroupSizeIsMultipleOfThreadExecutionWidth_(True)
        made = self._device.newComputePipelineStateWithDescriptor_options_reflection_error_(about, 0, None, None)
        if made[0] is None:
            raise converted(made[-1], "compile", self._name, kernel=name)
        self._pipelines[key] = made[0]
        return made[0]

    def _library(self, text: str, name: str) -> Handle:
        if text not in self._libraries:
            options = module().MTLCompileOptions.alloc().init()
            options.setLanguageVersion_(module().MTLLanguageVersion3_0)
            options.setFastMathEnabled_(False)  # norms find NaN and Inf
            made, error = self._device.newLibraryWithSource_options_error_(text, options, None)
            if made is None:
                raise converted(error, "compile", self._name, kernel=name)
            self._libraries[text] = made
        return self._libraries[text]

    def _check(self, pipeline: Handle, kernel: str, group: int) -> None:
        if pipeline.threadExecutionWidth() != SIMD:
            raise refused(f"simdgroups of {pipeline.threadExecutionWidth()} threads, not {SIMD}", kernel, self._name)
        if (most := pipeline.maxTotalThreadsPerThreadgroup()) < group:
            raise refused(f"it takes {most} threads in a threadgroup, and {group} are needed", kernel, self._name)
