"""Buffers: memory types, small ones in shared pieces of memory, and host memory that the device reads in place."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_core.errors import OutOfMemoryError, UnsupportedError
from bitnet_core.hal import MemoryKind

from bitnet_vulkan.describe import LOCAL_HEAP, PhysicalDevice
from bitnet_vulkan.driver import WHOLE_SIZE, Handle, create, destroy, ffi, function, lib, make
from bitnet_vulkan.errors import SUCCESS, TOO_MANY_OBJECTS, Stage, check

SMALL, PIECE = 1 << 20, 4 << 20
"""Buffers of up to SMALL bytes share pieces of PIECE bytes: drivers allow as few as 4,096 allocations."""
LOCAL, VISIBLE, COHERENT, CACHED = 1, 2, 4, 8
"""VkMemoryPropertyFlagBits: device-local; and what the host sees, without flushes, fast to read."""
_WANTED = {
    MemoryKind.DEVICE: (LOCAL, LOCAL),
    MemoryKind.HOST: (VISIBLE | COHERENT | CACHED, VISIBLE | COHERENT),
    MemoryKind.SHARED: (LOCAL | VISIBLE | COHERENT, LOCAL | VISIBLE | COHERENT),
}
"""Properties of a kind: wished, needed."""
_STORAGE_AND_COPIES = 0x23
_HOST_ALLOCATION = 0x80
"""VkBufferUsageFlagBits; VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT."""


@dataclass(eq=False, slots=True)
class Memory:
    """One VkDeviceMemory and its free ranges (first byte, end)."""

    handle: Handle
    nbytes: int
    type_index: int
    free: list[tuple[int, int]]


@dataclass(eq=False, slots=True)
class VulkanBuffer:
    """A VkBuffer bound to the bytes first..end of a Memory."""

    handle: Handle
    nbytes: int
    kind: MemoryKind
    memory: Memory
    first: int
    end: int
    address: int = 0  # the handle as descriptors have it

    def __post_init__(self) -> None:
        self.address = int(ffi().cast("uintptr_t", self.handle))


class Allocator:
    """Allocates buffers of one device."""

    def __init__(self, device: Handle, physical: PhysicalDevice) -> None:
        self._device, self._physical, self._name = device, physical, physical.info.name
        self._memories: set[Memory] = set()
        self._properties = make("VkPhysicalDeviceMemoryProperties")
        lib().vkGetPhysicalDeviceMemoryProperties(physical.handle, self._properties)

    def free_bytes(self) -> int:
        """What the driver says is left of device-local memory (budget extension), else total minus ours."""
        if not self._physical.features.memory_budget:
            return max(0, self._physical.info.total_memory - sum(memory.nbytes for memory in self._memories))
        budget = make("VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        properties = make("VkPhysicalDeviceMemoryProperties2", pNext=budget)
        lib().vkGetPhysicalDeviceMemoryProperties2(self._physical.handle, properties)
        heaps = enumerate(properties.memoryProperties.memoryHeaps[0 : properties.memoryProperties.memoryHeapCount])
        return max(
            0, *(int(budget.heapBudget[i] - budget.heapUsage[i]) for i, heap in heaps if heap.flags & LOCAL_HEAP)
        )

    def allocate(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        """A bound buffer of undefined content. OutOfMemoryError carries the sizes."""
        room = -(-nbytes // 16) * 16  # kernels read whole words
        handle = create("Buffer", self._device, Stage.MEMORY, self._name, size=room, usage=_STORAGE_AND_COPIES)
        needs = ffi().new("VkMemoryRequirements *")
        lib().vkGetBufferMemoryRequirements(self._device, handle, needs)
        try:
            index = self._type_index(needs.memoryTypeBits, kind)
            memory, first = self._reserve(needs.size, needs.alignment, index, nbytes)
        except Exception:
            destroy("Buffer", self._device, handle)
            raise
        buffer = VulkanBuffer(handle, nbytes, kind, memory, first, first + needs.size)
        status = lib().vkBindBufferMemory(self._device, handle, memory.handle, first)
        if status != SUCCESS:
            self.release(buffer)
        check(status, Stage.MEMORY, self._name)
        return buffer

    def _type_index(self, allowed: int, kind: MemoryKind) -> int:
        types = self._properties.memoryTypes[0 : self._properties.memoryTypeCount]
        for wanted in _WANTED[kind]:
            for index, memory_type in enumerate(types):
                if allowed >> index & 1 and memory_type.propertyFlags & wanted == wanted:
                    return index
        raise UnsupportedError(f"no memory is {kind.value}", backend="vulkan", device=self._name, operation="alloc")

    def _reserve(self, size: int, alignment: int, index: int, nbytes: int) -> tuple[Memory, int]:
        """A range for a buffer of `nbytes`, and where it begins."""
        if size > SMALL:
            return self._new_memory(size, index, nbytes), 0
        for memory in self._memories:
            for i, (first, end) in enumerate(memory.free if memory.type_index == index else ()):
                at = -(-first // alignment) * alignment
                if at + size <= end:
                    memory.free[i : i + 1] = [part for part in ((first, at), (at + size, end)) if part[0] < part[1]]
                    return memory, at
        try:
            memory = self._new_memory(PIECE, index, nbytes)
        except OutOfMemoryError:  # a whole piece does not fit any more; the buffer may
            return self._new_memory(size, index, nbytes), 0
        memory.free.append((size, PIECE))
        return memory, 0

    def _new_memory(self, size: int, index: int, nbytes: int) -> Memory:
        handle, status = ffi().new("VkDeviceMemory *"), TOO_MANY_OBJECTS
        if len(self._memories) < self._physical.max_allocations:
            place = make("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=index)
            status = lib().vkAllocateMemory(self._device, place, ffi().NULL, handle)
        check(status, Stage.MEMORY, self._name, requested=nbytes, free=self.free_bytes() if status else -1)
        memory = Memory(handle[0], size, index, [])
        self._memories.add(memory)
        return memory

    def map(self, buffer: VulkanBuffer) -> memoryview:
        """The bytes of a HOST buffer with memory of its own, mapped for as long as it lives."""
        pointer = ffi().new("void **")
        status = lib().vkMapMemory(self._device, buffer.memory.handle, 0, WHOLE_SIZE, 0, pointer)
        check(status, Stage.MEMORY, self._name)
        return memoryview(ffi().buffer(pointer[0], buffer.nbytes)).cast("B")

    def release(self, buffer: VulkanBuffer) -> None:
        """Destroy a buffer that the device no longer uses, and its memory when nothing else lives there."""
        destroy("Buffer", self._device, buffer.handle)
        memory = buffer.memory
        free: list[tuple[int, int]] = []
        for first, end in sorted([*memory.free, (buffer.first, buffer.end)]):
            if free and free[-1][1] == first:
                first = free.pop()[0]
            free.append((first, end))
        memory.free = free
        if free == [(0, memory.nbytes)]:
            lib().vkFreeMemory(self._device, memory.handle, ffi().NULL)
            self._memories.remove(memory)

    def import_host(self, host: memoryview) -> VulkanBuffer | None:
        """A buffer over `host`, which the caller keeps alive; None where its place or the driver does not allow it.

        Whole pages are imported, the buffer is the part of them that `host` is.
        """
        page, device, null = self._physical.features.host_alignment, self._device, ffi().NULL
        address = int(ffi().cast("uintptr_t", ffi().from_buffer(host)))
        first = address // page * page
        size = -(-(address + host.nbytes) // page) * page - first
        external = make("VkExternalMemoryBufferCreateInfo", handleTypes=_HOST_ALLOCATION)
        words = -(-host.nbytes // 4) * 4  # never past the last page
        fields = {"pNext": external, "size": words, "usage": _STORAGE_AND_COPIES}
        handle = create("Buffer", device, Stage.MEMORY, self._name, **fields)
        needs = ffi().new("VkMemoryRequirements *")
        lib().vkGetBufferMemoryRequirements(device, handle, needs)
        allowed, memory = self._importable(first) & needs.memoryTypeBits, ffi().new("VkDeviceMemory *")
        if allowed and (address - first) % needs.alignment == 0 and first + size >= address + needs.size:
            pointer = ffi().cast("void *", first)
            place = make("VkImportMemoryHostPointerInfoEXT", handleType=_HOST_ALLOCATION, pHostPointer=pointer)
            index = (allowed & -allowed).bit_length() - 1
            info = make("VkMemoryAllocateInfo", pNext=place, allocationSize=size, memoryTypeIndex=index)
            if lib().vkAllocateMemory(device, info, null, memory) == SUCCESS:
                if lib().vkBindBufferMemory(device, handle, memory[0], address - first) == SUCCESS:
                    own = Memory(memory[0], size, index, [])  # all of it is the buffer's, so freeing that frees it
                    self._memories.add(own)
                    return VulkanBuffer(handle, host.nbytes, MemoryKind.SHARED, own, 0, size)
                lib().vkFreeMemory(device, memory[0], null)
        destroy("Buffer", device, handle)
        return None

    def _importable(self, address: int) -> int:
        """Memory types that a host address can be imported as, one bit each."""
        ask = function("vkGetMemoryHostPointerPropertiesEXT", device=self._device)
        properties = make("VkMemoryHostPointerPropertiesEXT")
        status = ask(self._device, _HOST_ALLOCATION, ffi().cast("void *", address), properties)
        return int(properties.memoryTypeBits) if status == SUCCESS else 0
