"""Command buffers, whose commands run one after another, and the pipelines that they launch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cache
from struct import pack

from bitnet_hal.plugin import BoundLaunch, CompiledKernel, Handle, MemoryKind, words_of

from bitnet_vulkan.driver import function, vk

COMPUTE = 0x800  # VkPipelineStageFlagBits
TRANSFER = 0x1000
HOST = 0x4000
ANY = COMPUTE | TRANSFER
_TOP_OF_PIPE = 0x1
_BOTTOM_OF_PIPE = 0x2000
_ACCESS = {COMPUTE: 0x60, TRANSFER: 0x1800, ANY: 0x1860, HOST: 0x2000}
"""VkAccessFlagBits of a stage's reads and writes."""
COMPUTE_SHADER_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
COMPUTE_BIND_POINT = 1  # VK_PIPELINE_BIND_POINT_COMPUTE


@dataclass(eq=False, slots=True)
class VulkanBuffer:
    """A VkBuffer and its VkDeviceMemory. address: the handle as an integer, as descriptors store it."""

    handle: Handle
    memory: Handle
    nbytes: int
    kind: MemoryKind
    address: int


@dataclass(frozen=True, slots=True, eq=False)
class VulkanKernel(CompiledKernel):
    """A pipeline, its layout, and the template that pushes the layout's only descriptor set."""

    pipeline: Handle
    layout: Handle
    template: Handle


Range = tuple[VulkanBuffer, int, int]
"""A buffer, an offset in it, and a number of bytes."""


def overlap(ranges: Iterable[Range], others: Collection[Range]) -> bool:
    """Return whether a range has a byte in common with one of the others."""
    return any(
        buffer is other and start < begin + size and begin < start + nbytes
        for buffer, start, nbytes in ranges
        for other, begin, size in others
    )


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer, its VkSubmitInfo, the stage of its last command (initially any), and the bytes that the
    launches since the last barrier read and write.

    A launch runs at the same time as those since the last barrier if it does not depend on them, as the products of one
    input; any other command waits for all before it.
    """

    handle: Handle
    info: Handle
    last: int = ANY
    reads: list[Range] = field(default_factory=list)
    writes: list[Range] = field(default_factory=list)

    def follow(self, stage: int) -> Handle:
        """Add a barrier before a command of this stage: earlier commands finish first, and their writes are visible."""
        self.reads.clear()
        self.writes.clear()
        memory_barrier = _barrier(self.last, stage)
        null = vk().null
        vk().lib.vkCmdPipelineBarrier(self.handle, self.last, stage, 0, 1, memory_barrier, 0, null, 0, null)
        self.last = stage
        return self.handle

    def launch(self, launch: BoundLaunch[VulkanBuffer, VulkanKernel], queries: Handle = None, first: int = 0) -> None:
        """Add a launch. queries: a pool whose query `first` records the start and `first` + 1 the end; the launch then
        runs alone."""
        lib = vk().lib
        ffi = vk().ffi
        kernel = launch.kernel
        params = launch.params
        commands = self._after_dependencies(launch, alone=bool(queries))
        words: list[int] = []  # of one VkDescriptorBufferInfo after another
        for buffer, offset, nbytes in launch.bound:
            words += buffer.address, offset, words_of(nbytes)
        descriptors = ffi.from_buffer(pack(f"{len(words)}Q", *words))
        push_descriptors = function("vkCmdPushDescriptorSetWithTemplateKHR")
        if queries:
            lib.vkCmdWriteTimestamp(commands, _TOP_OF_PIPE, queries, first)
        lib.vkCmdBindPipeline(commands, COMPUTE_BIND_POINT, kernel.pipeline)
        push_descriptors(commands, kernel.template, kernel.layout, 0, descriptors)
        lib.vkCmdPushConstants(commands, kernel.layout, COMPUTE_SHADER_STAGE, 0, len(params), ffi.from_buffer(params))
        lib.vkCmdDispatch(commands, *launch.grid)
        if queries:
            lib.vkCmdWriteTimestamp(commands, _BOTTOM_OF_PIPE, queries, first + 1)

    def _after_dependencies(self, launch: BoundLaunch[VulkanBuffer, VulkanKernel], *, alone: bool) -> Handle:
        """Add a barrier unless the launch depends on none since the last one."""
        bindings = launch.kernel.spec.bindings
        workspace = launch.bound[len(bindings) :]
        used = list(zip(bindings, launch.bound, strict=False))
        reads = [part for binding, part in used if binding.access == "r"]
        writes = [part for binding, part in used if binding.access != "r"] + list(workspace)
        depends = overlap(self.writes, [*reads, *writes]) or overlap(self.reads, writes)
        if alone or depends or self.last != COMPUTE:
            self.follow(COMPUTE)
        self.reads += reads
        self.writes += writes
        return self.handle


@cache
def _barrier(before: int, after: int) -> Handle:
    return vk().make("VkMemoryBarrier", srcAccessMask=_ACCESS[before], dstAccessMask=_ACCESS[after])
