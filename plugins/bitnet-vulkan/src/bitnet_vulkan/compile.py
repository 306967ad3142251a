"""Compute pipelines: SPIR-V of the wheel, specialization constants, and the pipeline cache on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitnet_core.errors import KernelCompileError, UnsupportedError
from bitnet_core.hal import Tuning
from bitnet_core.hal.program_cache import ProgramCache
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan.describe import Features, PhysicalDevice
from bitnet_vulkan.driver import Handle, create, destroy, ffi, function, lib, make
from bitnet_vulkan.errors import Stage, check

KERNELS = Path(__file__).parent / "kernels"
CONSTANT_IDS = (
    *("GROUP", "TILE_N", "TILE_T", "DTYPE", "ADD", "NORM", "ACT", "KV", "INTERLEAVED", "BLOCK", "WIDTH", "LANES"),
    *("HEADS", "DIM", "SPLITS", "BATCH", "WAVE", "WAVE_T", "MEMBERS", "KV_HEADS", "FFN", "ABLOCK", "QKNORM", "MASK"),
    *("ROOM", "ROWS"),
)
"""Specialization constants by their id in prelude.glsl."""
FULL_SUBGROUPS = 2
"""VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT, which the Python package leaves out."""
STORAGE_BUFFER, COMPUTE_STAGE = 7, 0x20
SPIRV_MAGIC = b"\x03\x02\x23\x07"


@dataclass(frozen=True, slots=True)
class Layout:
    """A pipeline layout, its only set pushed through a template. push: vkCmdPushDescriptorSetWithTemplateKHR."""

    sets: Handle
    handle: Handle
    template: Handle
    push: Any


@dataclass(frozen=True, slots=True, eq=False)
class VulkanKernel:
    """A pipeline with its constants."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning
    pipeline: Handle
    layout: Layout


def source_of(name: str, variant: str, features: Features) -> Path:
    """The SPIR-V file of a kernel, for the most features that the device has; UnsupportedError if there is none."""
    endings = {
        ".matrix": features.matrix or features.half_matrix,
        ".sub.dot": features.subgroups and features.integer_dot,
        ".dot": features.integer_dot,
        ".sub": features.subgroups,
        "": True,
    }
    stem = f"{name}_{variant}" if variant else name
    for ending, able in endings.items():
        if able and (path := KERNELS / f"{stem}{ending}.spv").exists():
            return path
    raise UnsupportedError(f"there is no kernel {stem}", backend="vulkan", operation="compile")


class Pipelines:
    """Builds pipelines of one device; layouts are shared by the number of bindings and of bytes of parameters."""

    def __init__(self, device: Handle, physical: PhysicalDevice) -> None:
        self._device, self._physical, self._name = device, physical, physical.info.name
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._pipelines: set[Handle] = set()
        self._kept, self._key = ProgramCache("vulkan"), self._cache_key()
        stored = self._kept.load(self._key) or b""
        fields = {"initialDataSize": len(stored), "pInitialData": stored or ffi().NULL}
        self._cache = create("PipelineCache", device, Stage.PIPELINE, self._name, **fields)
        self._grown = False

    def _cache_key(self) -> str:
        """One file per device, driver and set of SPIR-V files."""
        info, sources = self._physical.info, [path.read_bytes() for path in sorted(KERNELS.glob("*.spv"))]
        return ProgramCache.key(info.name, info.driver, info.physical_id, self._physical.cache_uuid, *sources)

    def _store(self) -> None:
        size = ffi().new("size_t *")
        lib().vkGetPipelineCacheData(self._device, self._cache, size, ffi().NULL)
        data = ffi().new("char[]", max(1, size[0]))
        lib().vkGetPipelineCacheData(self._device, self._cache, size, data)
        self._kept.store(self._key, bytes(ffi().buffer(data, size[0])))

    def _layout(self, bindings: int, params: int) -> Layout:
        if (bindings, params) in self._layouts:
            return self._layouts[bindings, params]
        slots: list[Any] = []
        for i in range(bindings):
            slot = {"binding": i, "descriptorType": STORAGE_BUFFER, "descriptorCount": 1, "stageFlags": COMPUTE_STAGE}
            slots.append(make("VkDescriptorSetLayoutBinding", **slot)[0])
        fields = {"flags": 1, "bindingCount": bindings, "pBindings": slots}  # pushed
        sets = self._create("DescriptorSetLayout", **fields)
        push = make("VkPushConstantRange", stageFlags=COMPUTE_STAGE, size=params)[0]
        fields = {
            "setLayoutCount": 1,
            "pSetLayouts": [sets],
            "pushConstantRangeCount": 1,
            "pPushConstantRanges": [push],
        }
        handle = self._create("PipelineLayout", **fields)
        entries: list[Any] = []
        for i in range(bindings):
            entry = {"dstBinding": i, "descriptorCount": 1, "descriptorType": STORAGE_BUFFER, "offset": 24 * i}
            entries.append(make("VkDescriptorUpdateTemplateEntry", **entry)[0])
        template = self._create(
            "DescriptorUpdateTemplate",
            descriptorUpdateEntryCount=bindings,
            pDescriptorUpdateEntries=entries,
            templateType=1,  # pushed
            pipelineBindPoint=1,
            pipelineLayout=handle,
        )
        pushing = function("vkCmdPushDescriptorSetWithTemplateKHR", device=self._device)
        made = self._layouts[bindings, params] = Layout(sets, handle, template, pushing)
        return made

    def _create(self, name: str, **fields: Any) -> Handle:
        return create(name, self._device, Stage.PIPELINE, self._name, **fields)

    def build(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> VulkanKernel:
        """Compile one kernel."""
        path = source_of(spec.name, tuning.variant, self._physical.features)
        given = {**constants, **tuning.tile, **tuning.private}
        if {".sub", ".matrix"} & set(path.suffixes):
            given["WAVE"] = self._physical.features.subgroups
        layout = self._layout(len(spec.bindings) + bool(tuning.workspace), 4 * len(spec.params))
        pipeline = self.pipeline(spec.name, given, layout, path.read_bytes())
        return VulkanKernel(spec, dict(constants), tuning, pipeline, layout)

    def pipeline(self, name: str, given: Mapping[str, int], layout: Layout | None, code: bytes) -> Handle:
        """Compile SPIR-V, with full subgroups of size WAVE where that is given. Drivers may crash on anything else than
        SPIR-V, so that much is checked."""
        if len(code) < 20 or len(code) % 4 or code[:4] != SPIRV_MAGIC:
            raise KernelCompileError(
                f"kernel {name} is damaged",
                kernel=name,
                log=f"{len(code)} bytes that begin with {code[:4].hex()} are not SPIR-V",
                backend="vulkan",
                device=self._name,
                hint="Reinstall bitnet-vulkan",
            )
        if unknown := set(given) - set(CONSTANT_IDS):
            raise ValueError(f"{name}: no specialization constant {', '.join(sorted(unknown))}")
        words = ffi().cast("uint32_t *", ffi().from_buffer(code))
        module = self._create("ShaderModule", codeSize=len(code), pCode=words)
        values = ffi().new("uint32_t[]", list(given.values()))
        ids = enumerate(CONSTANT_IDS.index(constant) for constant in given)
        entries = [make("VkSpecializationMapEntry", constantID=i, offset=4 * at, size=4)[0] for at, i in ids]
        stage = make(
            "VkPipelineShaderStageCreateInfo",
            pNext=make("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=given["WAVE"])
            if "WAVE" in given
            else ffi().NULL,
            flags=FULL_SUBGROUPS if "WAVE" in given else 0,
            stage=COMPUTE_STAGE,
            module=module,
            pName="main",
            pSpecializationInfo=make(
                "VkSpecializationInfo",
                mapEntryCount=len(entries),
                pMapEntries=entries,
                dataSize=4 * len(entries),
                pData=ffi().cast("void *", values),
            ),
        )
        info = make("VkComputePipelineCreateInfo", stage=stage, layout=layout.handle if layout else ffi().NULL)
        pipeline = ffi().new("VkPipeline *")
        status = lib().vkCreateComputePipelines(self._device, self._cache, 1, info, ffi().NULL, pipeline)
        destroy("ShaderModule", self._device, module)
        check(status, Stage.PIPELINE, self._name, kernel=name)
        self._grown = True
        self._pipelines.add(pipeline[0])
        return pipeline[0]

    def release(self, kernel: VulkanKernel) -> None:
        """Destroy a pipeline; the device must be idle."""
        self._pipelines.remove(kernel.pipeline)
        destroy("Pipeline", self._device, kernel.pipeline)

    def close(self) -> None:
        """Store the cache and destroy everything; the device must be idle."""
        if self._grown:
            self._store()
        for pipeline in self._pipelines:
            destroy("Pipeline", self._device, pipeline)
        for layout in self._layouts.values():
            destroy("DescriptorUpdateTemplate", self._device, layout.template)
            destroy("PipelineLayout", self._device, layout.handle)
            destroy("DescriptorSetLayout", self._device, layout.sets)
        destroy("PipelineCache", self._device, self._cache)
