"""Assembly of a kernel's MSL text, and compilation to pipelines."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitnet_hal.plugin import CompiledKernel, KernelSpec, Tuning, source_text

from bitnet_metal.driver import BACKEND, Handle, module, pool
from bitnet_metal.errors import not_built, refused

FOLDER = Path(__file__).parent / "kernels"
ROOM = "ROOM"
"""The only constant that is a macro, since function constants cannot size threadgroup memory."""
SIMD = 32
"""Threads of a simdgroup on every Apple GPU."""


@dataclass(frozen=True, eq=False, slots=True)
class MetalKernel(CompiledKernel):
    """Pipelines of one source: the kernel, followed by its `_merge` if there is a workspace between them."""

    pipelines: tuple[Handle, ...]


def constants_of(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> dict[str, int]:
    """Return the function constants in the order of their indices."""
    values = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    return {name: value for name, value in values.items() if name != ROOM}


def entry_points(spec: KernelSpec, tuning: Tuning) -> tuple[str, ...]:
    """Return the names of the functions: the kernel, and one that merges its results if it has a workspace."""
    first = tuning.source(spec.name)
    return (first, f"{spec.name}_merge") if tuning.workspace else (first,)


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Return the MSL text: function constants, parameters, then the kernel with its includes."""
    declared = "".join(
        f"constant uint {name} [[function_constant({index})]];\n"
        for index, name in enumerate(constants_of(spec, constants, tuning))
    )
    fields = "".join(f"    {'uint' if param.kind == 'u32' else 'float'} {param.name};\n" for param in spec.params)
    room = {ROOM: tuning.private[ROOM]} if ROOM in tuning.private else {}
    text = source_text((FOLDER,), f"{entry_points(spec, tuning)[0]}.metal", room, backend=BACKEND)
    return f"#include <metal_stdlib>\nusing namespace metal;\n{declared}struct Params {{\n{fields}}};\n{text}"


class Compiler:
    """The compiler of a device's pipelines.

    It caches libraries; core caches kernels, and macOS machine code on disk.
    """

    def __init__(self, device: Handle) -> None:
        self._device = device
        self._libraries: dict[str, Handle] = {}

    def kernel(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> MetalKernel:
        """Compile one kernel. Raises KernelCompileError with the compiler's text."""
        text = source(spec, constants, tuning)
        values = tuple(constants_of(spec, constants, tuning).values())
        with pool():
            pipelines = tuple(self._pipeline(text, name, values) for name in entry_points(spec, tuning))
        group = tuning.private["GROUP"]
        max_group = min(pipeline.maxTotalThreadsPerThreadgroup() for pipeline in pipelines)
        if max_group < group or pipelines[0].threadExecutionWidth() != SIMD:
            raise refused(f"{max_group} threads in a threadgroup, not {group} in simdgroups of {SIMD}", spec.name)
        return MetalKernel(spec, dict(constants), tuning, pipelines)

    def _pipeline(self, text: str, name: str, values: tuple[int, ...]) -> Handle:
        """Build the pipeline of one function with its constants, usable from indirect command buffers."""
        metal = module()
        if text not in self._libraries:
            options = metal.MTLCompileOptions.alloc().init()
            options.setLanguageVersion_(metal.MTLLanguageVersion3_0)
            options.setFastMathEnabled_(False)  # norms must detect NaN and Inf
            self._libraries[text] = _made(self._device.newLibraryWithSource_options_error_(text, options, None), name)
        given = metal.MTLFunctionConstantValues.alloc().init()
        for index, value in enumerate(values):
            given.setConstantValue_type_atIndex_(struct.pack("<I", value), metal.MTLDataTypeUInt, index)
        library = self._libraries[text]
        function = _made(library.newFunctionWithName_constantValues_error_(name, given, None), name)
        descriptor = metal.MTLComputePipelineDescriptor.alloc().init()
        descriptor.setComputeFunction_(function)
        descriptor.setSupportIndirectCommandBuffers_(True)
        make = self._device.newComputePipelineStateWithDescriptor_options_reflection_error_
        return _made(make(descriptor, 0, None, None), name)


def _made(result: tuple[Handle, ...], name: str) -> Handle:
    """Return the object of a result (object, ..., error). Raises KernelCompileError if Metal made none."""
    if result[0] is None:
        raise not_built(result[-1], name)
    return result[0]
