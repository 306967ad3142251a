"""Which commands need a barrier before them, and between which stages."""

from __future__ import annotations

from functools import cache

from bitnet_vulkan.binding import Handle, ffi, lib, make

Range = tuple[int, int, int]
"""(buffer identity, first byte, end byte)."""


class Hazards:
    """Ranges read and written since the last barrier of one command buffer, and whether copies are among them.

    compute: whether the queue has kernels at all.
    """

    def __init__(self, *, compute: bool = True) -> None:
        self._stages = _COMPUTE | _TRANSFER if compute else _TRANSFER
        self._reads: list[Range] = []
        self._writes: list[Range] = []
        self._copied = False

    def full_barrier(self, commands: Handle) -> None:
        """Everything before is done and visible to everything after (earlier submissions included)."""
        self._put(commands, self._stages, self._stages)

    def host_barrier(self, commands: Handle) -> None:
        """What was written becomes visible to the host, once the fence is signalled."""
        _pipeline_barrier(commands, self._stages, _HOST)

    def before(self, commands: Handle, reads: list[Range], writes: list[Range], *, copy: bool = False) -> None:
        """Put a barrier if these ranges touch what was written, or write what was read, since the last one.

        copy: the command is a transfer. Barriers that concern kernels alone are cheaper, so the others say so.
        """
        if self._overlap(reads + writes, self._writes) or self._overlap(writes, self._reads):
            kernels = self._stages & _COMPUTE
            self._put(commands, self._stages if self._copied else kernels, self._stages if copy else kernels)
        self._reads += reads
        self._writes += writes
        self._copied |= copy

    def _put(self, commands: Handle, before: int, after: int) -> None:
        _pipeline_barrier(commands, before, after)
        self._reads.clear()
        self._writes.clear()
        self._copied = False

    @staticmethod
    def _overlap(new: list[Range], old: list[Range]) -> bool:
        return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in new for b in old)


_COMPUTE, _TRANSFER, _HOST = 0x800, 0x1000, 0x4000
"""VkPipelineStageFlagBits."""
_READS = {_COMPUTE: 0x20, _TRANSFER: 0x800, _HOST: 0x2000}
_WRITES = {_COMPUTE: 0x40, _TRANSFER: 0x1000}
"""VkAccessFlagBits of the stages."""


@cache
def _memory_barrier(before: int, after: int) -> Handle:
    source = sum(access for stage, access in _WRITES.items() if stage & before)
    target = sum(access for stage, access in (*_READS.items(), *_WRITES.items()) if stage & after)
    return make("VkMemoryBarrier", srcAccessMask=source, dstAccessMask=target)


def _pipeline_barrier(commands: Handle, before: int, after: int) -> None:
    null = ffi().NULL
    lib().vkCmdPipelineBarrier(commands, before, after, 0, 1, _memory_barrier(before, after), 0, null, 0, null)
