"""Compute pipelines: SPIR-V of the wheel, specialization constants, and the pipeline cache on disk."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path

from bitnet_hal.errors import KernelCompileError, UnsupportedError
from bitnet_hal.plugin import Constants, DeviceInfo, Handle, KernelSpec, ProgramCache, Tuning, failure

from bitnet_vulkan.driver import BACKEND, Logical, vk
from bitnet_vulkan.recording import VulkanKernel

KERNELS = Path(__file__).parent / "kernels"
_CONSTANT = re.compile(r"constant_id = (\d+)\) const uint (\w+)")
CONSTANT_IDS = {name: int(number) for number, name in _CONSTANT.findall((KERNELS / "prelude.glsl").read_text())}
"""Of specialization constants."""
FULL_SUBGROUPS = 2  # VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
SPIRV_MAGIC = b"\x03\x02\x23\x07"


def source_of(name: str, info: DeviceInfo) -> Path:
    """The SPIR-V file of a source, for the most features that the device has; UnsupportedError if there is none."""
    lacks = [word for word, ability in ((".sub", "subgroups"), (".dot", "dot")) if not info.extra[ability]]
    for ending in (".matrix", ".sub.dot", ".dot", ".sub", ""):
        path = KERNELS / f"{name}{ending}.spv"
        if path.exists() and not any(word in ending for word in lacks):
            return path
    raise UnsupportedError(f"there is no kernel {name}", backend=BACKEND, operation="compile")


class Pipelines:
    """Builds pipelines of one device; layouts are shared by the number of bindings and of bytes of parameters."""

    def __init__(self, device: Logical, info: DeviceInfo) -> None:
        self._device, self._info, self._layout = device, info, cache(self._new_layout)
        self._create = partial(device.create, operation="compile")
        about = info.name, info.driver, info.physical_id, str(info.extra["pipeline_cache"])
        self._key = ProgramCache.key(*about, *(path.read_bytes() for path in sorted(KERNELS.glob("*.spv"))))
        self._kept = ProgramCache(BACKEND).load(self._key) or b""
        data = {"initialDataSize": len(self._kept), "pInitialData": vk().ffi.from_buffer(self._kept)}
        self._cache = self._create("PipelineCache", data)

    def store(self) -> None:
        """Keep what was compiled for the next time."""
        data = vk().bytes_of("vkGetPipelineCacheData", "compile", self._device.handle, self._cache)
        if data != self._kept:
            ProgramCache(BACKEND).store(self._key, data)

    def _new_layout(self, bindings: int, params: int) -> tuple[Handle, Handle]:
        """Layout and template of kernels with so many bindings and bytes of parameters."""
        numbers = range(bindings)
        sets = self._create("DescriptorSetLayout", {"pBindings": [{"binding": i} for i in numbers]})
        layout = self._create("PipelineLayout", {"pSetLayouts": [sets], "pPushConstantRanges": [{"size": params}]})
        entries = [{"dstBinding": i, "offset": 24 * i} for i in numbers]
        template = {"pDescriptorUpdateEntries": entries, "pipelineLayout": layout}
        return layout, self._create("DescriptorUpdateTemplate", template)

    def build(self, spec: KernelSpec, constants: Constants, tuning: Tuning) -> VulkanKernel:
        """Compile one kernel, where it uses subgroups with full ones of size WAVE."""
        path, stage = source_of(tuning.source(spec.name), self._info), {}
        given = {**constants, **tuning.tile, **tuning.private}
        if {".sub", ".matrix"} & set(path.suffixes):
            given["WAVE"] = int(self._info.extra["subgroups"])
            sized = vk().make("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=given["WAVE"])
            stage = {"pNext": sized, "flags": FULL_SUBGROUPS}
        entries = [{"constantID": CONSTANT_IDS[constant], "offset": 4 * at} for at, constant in enumerate(given)]
        values = vk().ffi.new("uint32_t[]", list(given.values()))
        stage["pSpecializationInfo"] = {"pMapEntries": entries, "dataSize": 4 * len(given), "pData": values}
        layout, template = self._layout(len(spec.bindings) + bool(tuning.workspace), 4 * len(spec.params))
        stage["module"] = self._module(spec.name, path.read_bytes())
        try:
            arguments = self._device.handle, self._cache, 1, {"stage": stage, "layout": layout}, vk().null
            made = vk().given("vkCreateComputePipelines", "compile", *arguments, kernel=spec.name)
        finally:
            self._device.destroy("ShaderModule", stage["module"])
        return VulkanKernel(spec, dict(constants), tuning, self._device.own("Pipeline", made), layout, template)

    def _module(self, name: str, code: bytes) -> Handle:
        """Drivers may crash on anything else than SPIR-V, so that much is checked."""
        if len(code) < 20 or len(code) % 4 or code[:4] != SPIRV_MAGIC:
            log = f"{len(code)} bytes that begin with {code[:4].hex()} are not SPIR-V"
            hint = "Reinstall bitnet-vulkan"
            raise failure(KernelCompileError, "compile", backend=BACKEND, hint=hint, kernel=name, log=log)
        words = vk().ffi.from_buffer("uint32_t[]", code)
        return self._create("ShaderModule", {"codeSize": len(code), "pCode": words})
