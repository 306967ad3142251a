"""One prepared launch, and the timing of a series of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bitnet_core.hal import Grid

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make
from bitnet_vulkan.errors import Stage, check
from bitnet_vulkan.hazards import Range
from bitnet_vulkan.instance import PhysicalDevice
from bitnet_vulkan.pipelines import VulkanKernel
from bitnet_vulkan.queue import Commands, Queue


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Everything a dispatch needs; `bound` points to its descriptor set."""

    kernel: VulkanKernel
    grid: Grid
    bound: Handle
    params: bytes
    reads: list[Range]
    writes: list[Range]

    def put(self, commands: Commands) -> None:
        """Record the dispatch, with a barrier before it where it needs one."""
        handle, layout, compute = commands.handle, self.kernel.layout, constant("VK_PIPELINE_BIND_POINT_COMPUTE")
        commands.hazards.before(handle, self.reads, self.writes)
        vk, stage = lib(), constant("VK_SHADER_STAGE_COMPUTE_BIT")
        vk.vkCmdBindPipeline(handle, compute, self.kernel.pipeline)
        vk.vkCmdBindDescriptorSets(handle, compute, layout, 0, 1, self.bound, 0, ffi().NULL)
        vk.vkCmdPushConstants(handle, layout, stage, 0, len(self.params), ffi().from_buffer(self.params))
        vk.vkCmdDispatch(handle, *self.grid)


def timed(
    device: Handle, physical: PhysicalDevice, queue: Queue, dispatches: Sequence[Dispatch]
) -> list[tuple[str, float]]:
    """Run the dispatches once, with a barrier between each two; (kernel name, seconds) of each."""
    count = 2 * len(dispatches)
    pool = ffi().new("VkQueryPool *")
    create = make("VkQueryPoolCreateInfo", queryType=constant("VK_QUERY_TYPE_TIMESTAMP"), queryCount=max(1, count))
    check(lib().vkCreateQueryPool(device, create, ffi().NULL, pool), Stage.COMMAND_BUFFER)
    top, bottom = constant("VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT"), constant("VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT")
    queue.flush()
    commands = queue.commands()
    lib().vkCmdResetQueryPool(commands.handle, pool[0], 0, max(1, count))
    for i, dispatch in enumerate(dispatches):
        commands.hazards.full_barrier(commands.handle)
        lib().vkCmdWriteTimestamp(commands.handle, top, pool[0], 2 * i)
        dispatch.put(commands)
        lib().vkCmdWriteTimestamp(commands.handle, bottom, pool[0], 2 * i + 1)
    queue.wait()
    ticks = ffi().new("uint64_t[]", max(1, count))
    if count:
        flags = constant("VK_QUERY_RESULT_64_BIT")
        status = lib().vkGetQueryPoolResults(device, pool[0], 0, count, 8 * count, ticks, 8, flags)
        check(status, Stage.WAIT, device=physical.info.name)
    lib().vkDestroyQueryPool(device, pool[0], ffi().NULL)
    return [
        (dispatch.kernel.spec.name, max(1, ticks[2 * i + 1] - ticks[2 * i]) * physical.timestamp_seconds)
        for i, dispatch in enumerate(dispatches)
    ]
