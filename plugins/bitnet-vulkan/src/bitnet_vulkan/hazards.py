"""Which commands need a barrier before them."""

from __future__ import annotations

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make

Range = tuple[int, int, int]
"""(buffer identity, first byte, end byte)."""


class Hazards:
    """Ranges read and written since the last barrier of one command buffer."""

    def __init__(self) -> None:
        self._reads: list[Range] = []
        self._writes: list[Range] = []
        shader = constant("VK_ACCESS_SHADER_READ_BIT") | constant("VK_ACCESS_SHADER_WRITE_BIT")
        transfer = constant("VK_ACCESS_TRANSFER_READ_BIT") | constant("VK_ACCESS_TRANSFER_WRITE_BIT")
        writes = constant("VK_ACCESS_SHADER_WRITE_BIT") | constant("VK_ACCESS_TRANSFER_WRITE_BIT")
        host = constant("VK_ACCESS_HOST_READ_BIT")
        self._barrier = make("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=shader | transfer)
        self._to_host = make("VkMemoryBarrier", srcAccessMask=writes, dstAccessMask=host)
        self._stages = constant("VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT") | constant("VK_PIPELINE_STAGE_TRANSFER_BIT")
        self._host_stage = constant("VK_PIPELINE_STAGE_HOST_BIT")

    def full_barrier(self, commands: Handle) -> None:
        """Everything before is done and visible to everything after (earlier submissions included)."""
        null = ffi().NULL
        lib().vkCmdPipelineBarrier(commands, self._stages, self._stages, 0, 1, self._barrier, 0, null, 0, null)
        self._reads.clear()
        self._writes.clear()

    def host_barrier(self, commands: Handle) -> None:
        """What was written becomes visible to the host, once the fence is signalled."""
        null = ffi().NULL
        lib().vkCmdPipelineBarrier(commands, self._stages, self._host_stage, 0, 1, self._to_host, 0, null, 0, null)

    def before(self, commands: Handle, reads: list[Range], writes: list[Range]) -> None:
        """Put a barrier if these ranges touch what was written, or write what was read, since the last one."""
        touched = reads + writes
        if _overlap(touched, self._writes) or _overlap(writes, self._reads):
            self.full_barrier(commands)
        self._reads += reads
        self._writes += writes


def _overlap(new: list[Range], old: list[Range]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in new for b in old)
