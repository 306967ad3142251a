"""Command buffers, whose commands run one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from struct import pack
from typing import TYPE_CHECKING

from bitnet_core.hal.plugin import Handle, Launch, words_of

from bitnet_vulkan.driver import function, vk

if TYPE_CHECKING:
    from bitnet_vulkan.compile import VulkanKernel
    from bitnet_vulkan.memory import VulkanBuffer

COMPUTE, TRANSFER, HOST, TOP, BOTTOM = 0x800, 0x1000, 0x4000, 0x1, 0x2000
_ACCESS = {COMPUTE: 0x60, TRANSFER: 0x1800, COMPUTE | TRANSFER: 0x1860, HOST: 0x2000}
"""VkPipelineStageFlagBits, and the VkAccessFlagBits of what they read and write."""
COMPUTE_STAGE, COMPUTE_PIPELINE = 0x20, 1


@dataclass(eq=False, slots=True)
class Commands:
    """A command buffer. info: a VkSubmitInfo; last: the stage of its last command, at first any.

    Each command waits for the one before it: in a plan nearly every launch reads what the last one wrote, so asking
    which do would save nothing.
    """

    handle: Handle
    info: Handle
    last: int = COMPUTE | TRANSFER

    def follow(self, stage: int) -> Handle:
        """What was done so far is finished, and visible to the next command, which is of this stage."""
        memory, null = _barrier(self.last, stage), vk().null
        vk().lib.vkCmdPipelineBarrier(self.handle, self.last, stage, 0, 1, memory, 0, null, 0, null)
        self.last = stage
        return self.handle


@cache
def _barrier(before: int, after: int) -> Handle:
    return vk().make("VkMemoryBarrier", srcAccessMask=_ACCESS[before], dstAccessMask=_ACCESS[after])


def dispatch(commands: Handle, launch: Launch[VulkanBuffer, VulkanKernel]) -> None:
    """Add a launch."""
    lib, ffi, kernel, params = vk().lib, vk().ffi, launch.kernel, launch.params
    words: list[int] = []
    for buffer, offset, nbytes in launch.bound:  # VkDescriptorBufferInfo
        words += buffer.address, offset, words_of(nbytes)
    bound, push = ffi.from_buffer(pack(f"{len(words)}Q", *words)), function("vkCmdPushDescriptorSetWithTemplateKHR")
    lib.vkCmdBindPipeline(commands, COMPUTE_PIPELINE, kernel.pipeline)
    push(commands, kernel.template, kernel.layout, 0, bound)
    lib.vkCmdPushConstants(commands, kernel.layout, COMPUTE_STAGE, 0, len(params), ffi.from_buffer(params))
    lib.vkCmdDispatch(commands, *launch.grid)
