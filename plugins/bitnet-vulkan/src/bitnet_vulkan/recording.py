"""Command buffers, whose commands run one after the other, and what these launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from struct import pack

from bitnet_hal.plugin import BoundLaunch, CompiledKernel, Handle, MemoryKind, words_of

from bitnet_vulkan.driver import function, vk

COMPUTE, TRANSFER, HOST, _TOP, _BOTTOM = 0x800, 0x1000, 0x4000, 0x1, 0x2000
ANY = COMPUTE | TRANSFER
_ACCESS = {COMPUTE: 0x60, TRANSFER: 0x1800, ANY: 0x1860, HOST: 0x2000}
"""VkPipelineStageFlagBits, and the VkAccessFlagBits of what they read and write."""
COMPUTE_STAGE, COMPUTE_PIPELINE = 0x20, 1


@dataclass(eq=False, slots=True)
class VulkanBuffer:
    """A VkBuffer and its VkDeviceMemory. address: the handle as descriptors have it."""

    handle: Handle
    memory: Handle
    nbytes: int
    kind: MemoryKind
    address: int


@dataclass(frozen=True, slots=True, eq=False)
class VulkanKernel(CompiledKernel):
    """A pipeline with its constants, and its layout, whose only set is pushed through a template."""

    pipeline: Handle
    layout: Handle
    template: Handle


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer, its VkSubmitInfo, and the stage of its last command, at first any. Each command waits for the
    one before it: in a plan nearly every launch reads what the last one wrote, so asking which do would save nothing.
    """

    handle: Handle
    info: Handle
    last: int = ANY

    def follow(self, stage: int) -> Handle:
        """What was done so far is finished, and visible to the next command, which is of this stage."""
        memory, null = _barrier(self.last, stage), vk().null
        vk().lib.vkCmdPipelineBarrier(self.handle, self.last, stage, 0, 1, memory, 0, null, 0, null)
        self.last = stage
        return self.handle

    def launch(self, launch: BoundLaunch[VulkanBuffer, VulkanKernel], queries: Handle = None, first: int = 0) -> None:
        """Add a launch; into two queries from `first` on, where there are some, when it begins and ends."""
        lib, ffi, kernel, params, commands = vk().lib, vk().ffi, launch.kernel, launch.params, self.follow(COMPUTE)
        words: list[int] = []
        for buffer, offset, nbytes in launch.bound:  # VkDescriptorBufferInfo
            words += buffer.address, offset, words_of(nbytes)
        bound, push = ffi.from_buffer(pack(f"{len(words)}Q", *words)), function("vkCmdPushDescriptorSetWithTemplateKHR")
        if queries:
            lib.vkCmdWriteTimestamp(commands, _TOP, queries, first)
        lib.vkCmdBindPipeline(commands, COMPUTE_PIPELINE, kernel.pipeline)
        push(commands, kernel.template, kernel.layout, 0, bound)
        lib.vkCmdPushConstants(commands, kernel.layout, COMPUTE_STAGE, 0, len(params), ffi.from_buffer(params))
        lib.vkCmdDispatch(commands, *launch.grid)
        if queries:
            lib.vkCmdWriteTimestamp(commands, _BOTTOM, queries, first + 1)


@cache
def _barrier(before: int, after: int) -> Handle:
    return vk().make("VkMemoryBarrier", srcAccessMask=_ACCESS[before], dstAccessMask=_ACCESS[after])
