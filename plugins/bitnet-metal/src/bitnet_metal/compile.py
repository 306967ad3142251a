"""From a kernel of the catalogue to MSL text, and from text to pipelines."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitnet_hal.plugin import CompiledKernel, KernelSpec, Tuning, source_text

from bitnet_metal.driver import BACKEND, Handle, module, pool
from bitnet_metal.errors import not_built, refused

FOLDER = Path(__file__).parent / "kernels"
ROOM = "ROOM"  # the one constant that is a macro: it sizes threadgroup memory, which function constants cannot
SIMD = 32  # threads of a simdgroup, on every GPU of Apple


@dataclass(frozen=True, eq=False, slots=True)
class MetalKernel(CompiledKernel):
    """Pipelines of one source: the kernel, and after it `_merge` where a workspace stands between the two."""

    pipelines: tuple[Handle, ...]


def constants_of(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> dict[str, int]:
    """Function constants, in the order of their indices."""
    values = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    return {name: value for name, value in values.items() if name != ROOM}


def entry_points(spec: KernelSpec, tuning: Tuning) -> tuple[str, ...]:
    """Names of the functions; the second reads what all threadgroups of the first left in the workspace."""
    first = tuning.source(spec.name)
    return (first, f"{spec.name}_merge") if tuning.workspace else (first,)


def source(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """The whole text: function constants, parameters, then the kernel with what it includes."""
    names = enumerate(constants_of(spec, constants, tuning))
    declared = "".join(f"constant uint {name} [[function_constant({i})]];\n" for i, name in names)
    fields = "".join(f"    {'uint' if param.kind == 'u32' else 'float'} {param.name};\n" for param in spec.params)
    room = {ROOM: tuning.private[ROOM]} if ROOM in tuning.private else {}
    text = source_text((FOLDER,), f"{entry_points(spec, tuning)[0]}.metal", room, backend=BACKEND)
    return f"#include <metal_stdlib>\nusing namespace metal;\n{declared}struct Params {{\n{fields}}};\n{text}"


class Compiler:
    """Makes pipelines on one device. Libraries are kept, core keeps kernels, and macOS machine code on disk."""

    def __init__(self, device: Handle) -> None:
        self._device, self._libraries = device, dict[str, Handle]()

    def kernel(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> MetalKernel:
        """KernelCompileError with the compiler's text if it does not build."""
        text, values = source(spec, constants, tuning), tuple(constants_of(spec, constants, tuning).values())
        with pool():
            made = tuple(self._pipeline(text, name, values) for name in entry_points(spec, tuning))
        group, most = tuning.private["GROUP"], min(pipeline.maxTotalThreadsPerThreadgroup() for pipeline in made)
        if most < group or made[0].threadExecutionWidth() != SIMD:
            raise refused(f"{most} threads in a threadgroup, not {group} in simdgroups of {SIMD}", spec.name)
        return MetalKernel(spec, dict(constants), tuning, made)

    def _pipeline(self, text: str, name: str, values: tuple[int, ...]) -> Handle:
        """One function of a library with its constants, usable from indirect command buffers."""
        metal = module()
        if text not in self._libraries:
            options = metal.MTLCompileOptions.alloc().init()
            options.setLanguageVersion_(metal.MTLLanguageVersion3_0)
            options.setFastMathEnabled_(False)  # norms find NaN and Inf
            self._libraries[text] = _made(self._device.newLibraryWithSource_options_error_(text, options, None), name)
        given = metal.MTLFunctionConstantValues.alloc().init()
        for index, value in enumerate(values):
            given.setConstantValue_type_atIndex_(struct.pack("<I", value), metal.MTLDataTypeUInt, index)
        about, library = metal.MTLComputePipelineDescriptor.alloc().init(), self._libraries[text]
        about.setComputeFunction_(_made(library.newFunctionWithName_constantValues_error_(name, given, None), name))
        about.setSupportIndirectCommandBuffers_(True)
        make = self._device.newComputePipelineStateWithDescriptor_options_reflection_error_
        return _made(make(about, 0, None, None), name)


def _made(result: tuple[Handle, ...], name: str) -> Handle:
    """What Metal made, of a result that ends with an error."""
    if result[0] is None:
        raise not_built(result[-1], name)
    return result[0]
