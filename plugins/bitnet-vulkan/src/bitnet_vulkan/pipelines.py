"""Compute pipelines: SPIR-V of the wheel, specialization constants, and the pipeline cache on disk."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import platformdirs
from bitnet_core.errors import KernelCompileError, UnsupportedError
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make
from bitnet_vulkan.errors import Stage, check
from bitnet_vulkan.features import Features
from bitnet_vulkan.instance import PhysicalDevice
from bitnet_vulkan.shaders import KERNELS

logger = logging.getLogger(__name__)

CONSTANT_IDS = (
    *("GROUP", "TILE_N", "TILE_T", "DTYPE", "ADD", "NORM", "ACT", "KV", "INTERLEAVED", "BLOCK"),
    *("WIDTH", "LANES", "HEADS", "DIM", "SPLITS", "BATCH", "WAVE", "WAVE_T", "GROUPS", "KV_HEADS", "FFN"),
)
"""Specialization constants by their id in prelude.glsl."""
FULL_SUBGROUPS = 2
"""VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT, which the Python package leaves out."""
SPIRV_MAGIC = b"\x03\x02\x23\x07"


class Source(IntEnum):
    """The tuning constant SOURCE: which of several sources serves a launch."""

    PLAIN = 0
    FEW = 1  # few rows
    TILED = 2  # many rows
    COOP = 3  # many rows, on matrix units
    SPLIT = 4  # several workgroups to a row
    RESIDENT = 5  # workgroups that wait for each other


@dataclass(frozen=True, slots=True)
class VulkanKernel:
    """A pipeline with its constants."""

    spec: KernelSpec
    constants: Mapping[str, int]
    pipeline: Handle
    layout: Handle
    set_layout: Handle

    @property
    def source(self) -> Source:
        """Which source it was made from."""
        return Source(self.constants.get("SOURCE", 0))


SCRATCH_AT = {"argmax_advance": 5, "attention": 6, "attention.rope": 6, "decoder_layer": 22}
"""Binding of the first of the two scratch buffers of a kernel whose workgroups work together."""


MEETING_WORDS = 9 * 32
"""Counters of meeting.glsl."""


def split_bytes(kernel: VulkanKernel, grid: tuple[int, int, int]) -> tuple[int, int]:
    """Bytes of the two scratch buffers: what each workgroup found, and how many of a row are done."""
    constants, groups = kernel.constants, grid[0] * grid[1]
    if kernel.source is Source.RESIDENT:
        heads, dim, kv_heads = constants["HEADS"], constants["DIM"], constants["KV_HEADS"]
        return 4 * max(constants["GROUPS"], kv_heads) * heads * (dim + 2), 4 * (MEETING_WORDS + kv_heads)
    words = 4 if kernel.spec.name == "argmax_advance" else constants["HEADS"] * (constants["DIM"] + 2)
    return 4 * groups * constants["SPLITS"] * words, 4 * groups


_NAMES = {"norm_matmul_glu": "norm_matmul.glu"}
"""Kernels made from another's source: its name, and the first part of the binary's ending."""


def source_of(spec: KernelSpec, constants: Mapping[str, int], features: Features) -> Path:
    """The SPIR-V file of a kernel, for the most features that the device has; UnsupportedError if there is none."""
    source = Source(constants.get("SOURCE", 0))
    stem, _, fused = _NAMES.get(spec.name, spec.name).partition(".")
    if source is not Source.PLAIN:
        stem += f"_{source.name.lower()}"
    endings = [".matrix"] if features.matrix or features.half_matrix else []
    endings += [".sub.dot"] if features.subgroups and features.integer_dot else []
    endings += [".dot"] if features.integer_dot else []
    endings += [".sub"] if features.subgroups else []
    for ending in [*endings, ""]:
        path = KERNELS / f"{stem}{f'.{fused}' if fused else ''}{ending}.spv"
        if path.exists():
            return path
    raise UnsupportedError(f"there is no kernel {spec.name}", backend="vulkan", operation="compile")


class Pipelines:
    """Builds pipelines of one device; layouts are shared by the number of bindings."""

    def __init__(self, device: Handle, physical: PhysicalDevice) -> None:
        self._device, self._physical = device, physical
        self._layouts: dict[tuple[int, int], tuple[Handle, Handle]] = {}
        self._pipelines: list[Handle] = []
        self._path = self._cache_path()
        stored = self._read_cache()
        create = make("VkPipelineCacheCreateInfo", initialDataSize=len(stored), pInitialData=stored or ffi().NULL)
        cache = ffi().new("VkPipelineCache *")
        check(lib().vkCreatePipelineCache(device, create, ffi().NULL, cache), Stage.PIPELINE_CREATION)
        self._cache = cache[0]
        self._grown = False

    def _cache_path(self) -> Path:
        """One file per device, driver and set of SPIR-V files."""
        digest = hashlib.sha256()
        info = self._physical.info
        digest.update(f"{info.name}|{info.driver}|{info.physical_id}|{self._physical.cache_uuid}".encode())
        for path in sorted(KERNELS.glob("*.spv")):
            digest.update(path.read_bytes())
        return Path(platformdirs.user_cache_dir("bitnet")) / "vulkan" / f"{digest.hexdigest()[:32]}.bin"

    def _read_cache(self) -> bytes:
        """The stored cache, or nothing if there is none or its checksum is wrong."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return b""
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            logger.warning("the pipeline cache %s is damaged and will be made again", self._path)
            return b""
        return data[32:]

    def _write_cache(self) -> None:
        size = ffi().new("size_t *")
        lib().vkGetPipelineCacheData(self._device, self._cache, size, ffi().NULL)
        data = ffi().new("char[]", max(1, size[0]))
        lib().vkGetPipelineCacheData(self._device, self._cache, size, data)
        content = bytes(ffi().buffer(data, size[0]))
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(hashlib.sha256(content).digest() + content)
            temporary.replace(self._path)
        except OSError as exc:
            logger.info("the pipeline cache was not stored: %s", exc)
            temporary.unlink(missing_ok=True)

    def _layout(self, spec: KernelSpec, source: Source) -> tuple[Handle, Handle]:
        scratch = 2 if source in (Source.SPLIT, Source.RESIDENT) else 0
        key = len(spec.bindings) + scratch, 4 * len(spec.params)
        if key not in self._layouts:
            stage = constant("VK_SHADER_STAGE_COMPUTE_BIT")
            bindings = [
                make(
                    "VkDescriptorSetLayoutBinding",
                    binding=i,
                    descriptorType=constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER"),
                    descriptorCount=1,
                    stageFlags=stage,
                )[0]
                for i in range(key[0])
            ]
            sets = ffi().new("VkDescriptorSetLayout *")
            create = make("VkDescriptorSetLayoutCreateInfo", bindingCount=key[0], pBindings=bindings)
            status = lib().vkCreateDescriptorSetLayout(self._device, create, ffi().NULL, sets)
            check(status, Stage.PIPELINE_CREATION, kernel=spec.name)
            push = make("VkPushConstantRange", stageFlags=stage, offset=0, size=key[1])[0]
            create = make(
                "VkPipelineLayoutCreateInfo",
                setLayoutCount=1,
                pSetLayouts=[sets[0]],
                pushConstantRangeCount=1,
                pPushConstantRanges=[push],
            )
            layout = ffi().new("VkPipelineLayout *")
            status = lib().vkCreatePipelineLayout(self._device, create, ffi().NULL, layout)
            check(status, Stage.PIPELINE_CREATION, kernel=spec.name)
            self._layouts[key] = sets[0], layout[0]
        return self._layouts[key]

    def build(self, spec: KernelSpec, constants: Mapping[str, int]) -> VulkanKernel:
        """Compile one kernel for these constants."""
        spec.check_constants(constants)
        path = source_of(spec, constants, self._physical.features)
        return self.build_from(
            spec, constants, path.read_bytes(), subgroups=bool({".sub", ".matrix"} & set(path.suffixes))
        )

    def build_from(
        self, spec: KernelSpec, constants: Mapping[str, int], code: bytes, *, subgroups: bool = False
    ) -> VulkanKernel:
        """Compile given SPIR-V. Drivers may crash on anything else, so that much is checked.

        subgroups: ask for full subgroups of the size that the features name.
        """
        if len(code) < 20 or len(code) % 4 or code[:4] != SPIRV_MAGIC:
            raise KernelCompileError(
                f"kernel {spec.name} is damaged",
                kernel=spec.name,
                log=f"{len(code)} bytes that begin with {code[:4].hex()} are not SPIR-V",
                backend="vulkan",
                device=self._physical.info.name,
                hint="Reinstall bitnet-vulkan",
            )
        set_layout, layout = self._layout(spec, Source(constants.get("SOURCE", 0)))
        words = ffi().new("uint32_t[]", len(code) // 4)
        ffi().memmove(words, code, len(code) // 4 * 4)
        module = ffi().new("VkShaderModule *")
        create = make("VkShaderModuleCreateInfo", codeSize=len(code), pCode=words)
        status = lib().vkCreateShaderModule(self._device, create, ffi().NULL, module)
        check(status, Stage.SHADER_COMPILATION, device=self._physical.info.name, kernel=spec.name)
        wave = {"WAVE": self._physical.features.subgroups} if subgroups else {}
        given = {**constants, **wave}
        known = [(i, given[name]) for i, name in enumerate(CONSTANT_IDS) if name in given]
        values = ffi().new("uint32_t[]", [value for _, value in known])
        entries = [
            make("VkSpecializationMapEntry", constantID=i, offset=4 * at, size=4)[0] for at, (i, _) in enumerate(known)
        ]
        special = make(
            "VkSpecializationInfo",
            mapEntryCount=len(known),
            pMapEntries=entries,
            dataSize=4 * len(known),
            pData=ffi().cast("void *", values),
        )
        sized, flags = ffi().NULL, 0
        if subgroups:
            flags = FULL_SUBGROUPS
            sized = make(
                "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo",
                requiredSubgroupSize=self._physical.features.subgroups,
            )
        stage = make(
            "VkPipelineShaderStageCreateInfo",
            pNext=sized,
            flags=flags,
            stage=constant("VK_SHADER_STAGE_COMPUTE_BIT"),
            module=module[0],
            pName="main",
            pSpecializationInfo=special,
        )
        create = make("VkComputePipelineCreateInfo", stage=stage, layout=layout)
        pipeline = ffi().new("VkPipeline *")
        status = lib().vkCreateComputePipelines(self._device, self._cache, 1, create, ffi().NULL, pipeline)
        lib().vkDestroyShaderModule(self._device, module[0], ffi().NULL)
        check(status, Stage.PIPELINE_CREATION, device=self._physical.info.name, kernel=spec.name)
        self._pipelines.append(pipeline[0])
        self._grown = True
        return VulkanKernel(spec, dict(constants), pipeline[0], layout, set_layout)

    def close(self) -> None:
        """Store the cache and destroy everything; the device must be idle."""
        if self._grown:
            self._write_cache()
        for pipeline in self._pipelines:
            lib().vkDestroyPipeline(self._device, pipeline, ffi().NULL)
        for sets, layout in self._layouts.values():
            lib().vkDestroyPipelineLayout(self._device, layout, ffi().NULL)
            lib().vkDestroyDescriptorSetLayout(self._device, sets, ffi().NULL)
        lib().vkDestroyPipelineCache(self._device, self._cache, ffi().NULL)
