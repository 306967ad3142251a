"""Compute pipelines: SPIR-V files, specialization constants, and the pipeline cache on disk."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

from bitnet_hal.errors import KernelCompileError, UnsupportedError
from bitnet_hal.plugin import Constants, DeviceInfo, Handle, KernelSpec, ProgramCache, Tuning, failure

from bitnet_vulkan.driver import BACKEND, Logical, vk
from bitnet_vulkan.recording import VulkanKernel

KERNELS = Path(__file__).parent / "kernels"
_CONSTANT = re.compile(r"constant_id = (\d+)\) const uint (\w+)")
CONSTANT_IDS = {name: int(number) for number, name in _CONSTANT.findall((KERNELS / "prelude.glsl").read_text())}
"""IDs of the specialization constants, by name."""
FULL_SUBGROUPS = 2  # VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
DESCRIPTOR_BYTES = 24  # of a VkDescriptorBufferInfo
SPIRV_MAGIC = b"\x03\x02\x23\x07"


def source_of(name: str, info: DeviceInfo) -> Path:
    """Return the SPIR-V file of a source that uses most of the device's abilities.

    Raises UnsupportedError if there is none.
    """
    able = {".matrix": True, ".sub": info.extra["subgroups"], ".dot": info.extra["dot"]}
    for suffixes in ((".matrix",), (".sub", ".dot"), (".dot",), (".sub",), ()):
        path = KERNELS / f"{name}{''.join(suffixes)}.spv"
        if path.exists() and all(able[suffix] for suffix in suffixes):
            return path
    raise UnsupportedError(f"there is no kernel {name}", backend=BACKEND, operation="compile")


class Pipelines:
    """The compiler of a device's pipelines.

    Kernels with the same number of bindings and of parameter bytes share a layout.
    """

    def __init__(self, device: Logical, info: DeviceInfo) -> None:
        self._device = device
        self._info = info
        self._layout = cache(self._new_layout)
        self._create = partial(device.create, operation="compile")
        identity = (info.name, info.driver, info.physical_id, str(info.extra["pipeline_cache"]))
        self._key = ProgramCache.key(*identity, *(path.read_bytes() for path in sorted(KERNELS.glob("*.spv"))))
        self._loaded = ProgramCache(BACKEND).load(self._key) or b""
        data = {"initialDataSize": len(self._loaded), "pInitialData": vk().ffi.from_buffer(self._loaded)}
        self._cache = self._create("PipelineCache", data)

    def store(self) -> None:
        """Write the pipeline cache to disk if it has changed."""
        data = vk().bytes_of("vkGetPipelineCacheData", "compile", self._device.handle, self._cache)
        if data != self._loaded:
            ProgramCache(BACKEND).store(self._key, data)

    def _new_layout(self, bindings: int, params: int) -> tuple[Handle, Handle]:
        """Return a new (pipeline layout, descriptor template) for `bindings` buffers and `params` parameter bytes."""
        numbers = range(bindings)
        sets = self._create("DescriptorSetLayout", {"pBindings": [{"binding": i} for i in numbers]})
        layout = self._create("PipelineLayout", {"pSetLayouts": [sets], "pPushConstantRanges": [{"size": params}]})
        entries = [{"dstBinding": i, "offset": DESCRIPTOR_BYTES * i} for i in numbers]
        template = {"pDescriptorUpdateEntries": entries, "pipelineLayout": layout}
        return layout, self._create("DescriptorUpdateTemplate", template)

    def build(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> VulkanKernel:
        """Compile a kernel. If it uses subgroups, these are full and of the device's size, its constant WAVE."""
        path = source_of(tuning.source(spec.name), self._info)
        stage: dict[str, Any] = {}
        values = {**constants, **tuning.tile, **tuning.private}
        if {".sub", ".matrix"} & set(path.suffixes):
            wave = int(self._info.extra["subgroups"])
            values["WAVE"] = wave
            sized = vk().make("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=wave)
            stage = {"pNext": sized, "flags": FULL_SUBGROUPS}
        stage["pSpecializationInfo"] = _specialization(values)
        layout, template = self._layout(len(spec.bindings) + bool(tuning.workspace), 4 * len(spec.params))
        stage["module"] = self._module(spec.name, path.read_bytes())
        create_info = {"stage": stage, "layout": layout}
        arguments = (self._device.handle, self._cache, 1, create_info, vk().null)
        try:
            pipeline = vk().given("vkCreateComputePipelines", "compile", *arguments, kernel=spec.name)
        finally:
            self._device.destroy("ShaderModule", stage["module"])
        return VulkanKernel(spec, dict(constants), tuning, self._device.own("Pipeline", pipeline), layout, template)

    def _module(self, name: str, code: bytes) -> Handle:
        """Create a shader module. Raises KernelCompileError if the file is not SPIR-V, on which drivers may crash."""
        if len(code) < 20 or len(code) % 4 or code[:4] != SPIRV_MAGIC:
            log = f"{len(code)} bytes that begin with {code[:4].hex()} are not SPIR-V"
            hint = "Reinstall bitnet-vulkan"
            raise failure(KernelCompileError, "compile", backend=BACKEND, hint=hint, kernel=name, log=log)
        words = vk().ffi.from_buffer("uint32_t[]", code)
        return self._create("ShaderModule", {"codeSize": len(code), "pCode": words})


def _specialization(values: Constants) -> dict[str, Any]:
    """Return the VkSpecializationInfo of these constants, each a u32."""
    entries = [{"constantID": CONSTANT_IDS[name], "offset": 4 * at} for at, name in enumerate(values)]
    data = vk().ffi.new("uint32_t[]", list(values.values()))
    return {"pMapEntries": entries, "dataSize": 4 * len(values), "pData": data}
