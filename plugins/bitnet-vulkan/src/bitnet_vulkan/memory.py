"""Buffers, memory types, and sub-allocation of small buffers from larger pieces of device memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import Any

from bitnet_core.errors import OutOfMemoryError, UnsupportedError
from bitnet_core.hal import MemoryKind

from bitnet_vulkan.binding import WHOLE_SIZE, Handle, constant, ffi, lib, make
from bitnet_vulkan.errors import Stage, VkResult, check
from bitnet_vulkan.instance import PhysicalDevice

SMALL, PIECE = 1 << 20, 4 << 20
"""Buffers of up to SMALL bytes share pieces of PIECE bytes: drivers allow as few as 4,096 allocations."""


class BufferUsage(Flag):
    """What a buffer's memory must be able to do."""

    DEVICE_LOCAL = auto()
    STAGING = auto()  # host-visible and coherent
    CACHED = auto()  # fast for the host to read
    STORAGE = DEVICE_LOCAL


class BufferState(Enum):
    """The life of a buffer. Debug mode (validation) refuses any other order."""

    DESCRIBED = "described"
    ALLOCATED = "allocated"
    BOUND = "bound"
    IN_USE = "in use"
    READ_BACK = "read back"
    MAPPED = "mapped"
    DESTROYED = "destroyed"


_NEXT = {
    BufferState.DESCRIBED: {BufferState.ALLOCATED, BufferState.DESTROYED},
    BufferState.ALLOCATED: {BufferState.BOUND, BufferState.DESTROYED},
    BufferState.BOUND: {BufferState.IN_USE, BufferState.MAPPED, BufferState.READ_BACK, BufferState.DESTROYED},
    BufferState.IN_USE: {BufferState.IN_USE, BufferState.READ_BACK, BufferState.DESTROYED},
    BufferState.READ_BACK: {BufferState.IN_USE, BufferState.READ_BACK, BufferState.MAPPED, BufferState.DESTROYED},
    BufferState.MAPPED: {BufferState.IN_USE, BufferState.MAPPED, BufferState.READ_BACK, BufferState.DESTROYED},
    BufferState.DESTROYED: set(),
}


@dataclass(eq=False, slots=True)
class Memory:
    """One VkDeviceMemory and its free ranges (offset, size)."""

    handle: Handle
    nbytes: int
    type_index: int
    free: list[tuple[int, int]]
    mapped: memoryview | None = None


@dataclass(eq=False, slots=True)
class VulkanBuffer:
    """A VkBuffer bound to a range of a Memory."""

    handle: Handle
    nbytes: int
    kind: MemoryKind
    memory: Memory
    offset: int  # of the range in `memory`, which is `reserved` bytes long
    reserved: int
    state: BufferState = field(default=BufferState.DESCRIBED)

    def enter(self, state: BufferState) -> None:
        """Move on in life; ValueError for a step that makes no sense."""
        if state not in _NEXT[self.state]:
            raise ValueError(f"a buffer that is {self.state.value} cannot become {state.value}")
        self.state = state


class Allocator:
    """Allocates buffers of one device."""

    def __init__(self, device: Handle, physical: PhysicalDevice) -> None:
        self._device = device
        self._physical = physical
        self._memories: set[Memory] = set()
        properties = ffi().new("VkPhysicalDeviceMemoryProperties *")
        lib().vkGetPhysicalDeviceMemoryProperties(physical.handle, properties)
        self._types = [properties.memoryTypes[i] for i in range(properties.memoryTypeCount)]
        self._keep = properties
        self._flags = {
            BufferUsage.DEVICE_LOCAL: constant("VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT"),
            BufferUsage.STAGING: constant("VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT")
            | constant("VK_MEMORY_PROPERTY_HOST_COHERENT_BIT"),
            BufferUsage.CACHED: constant("VK_MEMORY_PROPERTY_HOST_CACHED_BIT"),
        }
        self._buffer_usage = sum(
            constant(f"VK_BUFFER_USAGE_{name}_BIT") for name in ("STORAGE_BUFFER", "TRANSFER_SRC", "TRANSFER_DST")
        )

        families = [physical.queue_family, physical.copy_family]
        self._sharing: dict[str, Any] = {}
        if physical.copy_family is not None:
            mode = constant("VK_SHARING_MODE_CONCURRENT")
            self._sharing = {"sharingMode": mode, "queueFamilyIndexCount": 2, "pQueueFamilyIndices": families}

    def free_bytes(self) -> int:
        """What the driver says is left of device-local memory (budget extension), else total minus ours."""
        if self._physical.features.memory_budget:
            budget = make("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
            properties = make("VkPhysicalDeviceMemoryProperties2", pNext=budget)
            lib().vkGetPhysicalDeviceMemoryProperties2(self._physical.handle, properties)
            memory, local = properties.memoryProperties, constant("VK_MEMORY_HEAP_DEVICE_LOCAL_BIT")
            left = [
                int(budget.heapBudget[i] - budget.heapUsage[i])
                for i in range(memory.memoryHeapCount)
                if memory.memoryHeaps[i].flags & local
            ]
            return max(0, max(left))
        return max(0, self._physical.info.total_memory - sum(memory.nbytes for memory in self._memories))

    def _type_index(self, allowed: int, usage: BufferUsage) -> int:
        """The first memory type with all wanted properties; CACHED is a wish, the others are needed."""
        flags = [self._flags[part] for part in self._flags if part in usage]
        needed = [self._flags[part] for part in (BufferUsage.DEVICE_LOCAL, BufferUsage.STAGING) if part in usage]
        for wanted in (flags, needed):
            mask = 0
            for flag in wanted:
                mask |= flag
            for index, memory_type in enumerate(self._types):
                if allowed >> index & 1 and memory_type.propertyFlags & mask == mask:
                    return index
        raise UnsupportedError(
            f"no memory type is {usage}",
            backend="vulkan",
            device=self._physical.info.name,
            operation=Stage.MEMORY_TYPE_NOT_FOUND.value,
        )

    def allocate(self, nbytes: int, kind: MemoryKind, usage: BufferUsage) -> VulkanBuffer:
        """A bound buffer of undefined content. OutOfMemoryError carries the sizes."""
        name, free = self._physical.info.name, self.free_bytes()
        limit = self._physical.info.max_allocation
        if (limit and nbytes > limit) or nbytes > self._physical.info.total_memory:
            check(
                VkResult.ERROR_OUT_OF_DEVICE_MEMORY, Stage.BUFFER_ALLOCATION, device=name, requested=nbytes, free=free
            )
        words = -(-nbytes // 4) * 4  # kernels read whole words, vkCmdFillBuffer writes them
        create = make("VkBufferCreateInfo", size=words, usage=self._buffer_usage, **self._sharing)
        handle = ffi().new("VkBuffer *")
        status = lib().vkCreateBuffer(self._device, create, ffi().NULL, handle)
        check(status, Stage.BUFFER_ALLOCATION, device=name, requested=nbytes, free=free)
        needs = ffi().new("VkMemoryRequirements *")
        lib().vkGetBufferMemoryRequirements(self._device, handle[0], needs)
        try:
            index = self._type_index(needs.memoryTypeBits, usage)
            memory, offset = self._reserve(needs.size, needs.alignment, index, usage)
        except Exception:
            lib().vkDestroyBuffer(self._device, handle[0], ffi().NULL)
            raise
        buffer = VulkanBuffer(handle[0], nbytes, kind, memory, offset, needs.size)
        buffer.enter(BufferState.ALLOCATED)
        status = lib().vkBindBufferMemory(self._device, handle[0], memory.handle, offset)
        check(status, Stage.BUFFER_ALLOCATION, device=name, requested=nbytes, free=free)
        buffer.enter(BufferState.BOUND)
        return buffer

    def _reserve(self, nbytes: int, alignment: int, index: int, usage: BufferUsage) -> tuple[Memory, int]:
        if nbytes > SMALL or BufferUsage.STAGING in usage:
            return self._new_memory(nbytes, index), 0
        for memory in self._memories:
            if memory.type_index != index or memory.nbytes != PIECE:
                continue
            for i, (start, size) in enumerate(memory.free):
                offset = -(-start // alignment) * alignment
                if offset + nbytes <= start + size:
                    rest = [(start, offset - start), (offset + nbytes, start + size - offset - nbytes)]
                    memory.free[i : i + 1] = [part for part in rest if part[1]]
                    return memory, offset
        try:
            memory = self._new_memory(PIECE, index)
        except OutOfMemoryError:  # a whole piece does not fit any more; the buffer may
            return self._new_memory(nbytes, index), 0
        memory.free.append((nbytes, PIECE - nbytes))
        return memory, 0

    def _new_memory(self, nbytes: int, index: int) -> Memory:
        handle = ffi().new("VkDeviceMemory *")
        create = make("VkMemoryAllocateInfo", allocationSize=nbytes, memoryTypeIndex=index)
        name, free = self._physical.info.name, self.free_bytes()
        if len(self._memories) >= self._physical.max_allocations:
            status = int(VkResult.ERROR_TOO_MANY_OBJECTS)
        else:
            status = lib().vkAllocateMemory(self._device, create, ffi().NULL, handle)
        check(status, Stage.BUFFER_ALLOCATION, device=name, requested=nbytes, free=free)
        memory = Memory(handle[0], nbytes, index, [])
        self._memories.add(memory)
        return memory

    def adopt(self, buffer: VulkanBuffer) -> None:
        """Look after a buffer with memory of its own that was made elsewhere."""
        self._memories.add(buffer.memory)

    def map(self, buffer: VulkanBuffer) -> memoryview:
        """The bytes of a STAGING buffer, mapped for as long as it lives."""
        if buffer.memory.mapped is None:
            pointer = ffi().new("void **")
            status = lib().vkMapMemory(self._device, buffer.memory.handle, 0, WHOLE_SIZE, 0, pointer)
            check(status, Stage.BUFFER_ALLOCATION, device=self._physical.info.name, requested=buffer.nbytes)
            buffer.memory.mapped = memoryview(ffi().buffer(pointer[0], buffer.memory.nbytes)).cast("B")
            buffer.enter(BufferState.MAPPED)
        return buffer.memory.mapped[buffer.offset : buffer.offset + buffer.nbytes]

    def release(self, buffer: VulkanBuffer) -> None:
        """Destroy a buffer that the device no longer uses, and its memory when nothing else lives there."""
        buffer.enter(BufferState.DESTROYED)
        lib().vkDestroyBuffer(self._device, buffer.handle, ffi().NULL)
        memory = buffer.memory
        memory.free.append((buffer.offset, buffer.reserved))
        memory.free = _merged(memory.free)
        if sum(size for _, size in memory.free) == memory.nbytes:
            lib().vkFreeMemory(self._device, memory.handle, ffi().NULL)
            self._memories.remove(memory)

    def close(self) -> None:
        """Free whatever memory is left."""
        for memory in self._memories:
            lib().vkFreeMemory(self._device, memory.handle, ffi().NULL)
        self._memories.clear()


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        if merged and merged[-1][0] + merged[-1][1] == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((start, size))
    return merged
