"""Buffers: memory types, small ones in shared pieces of memory, and host memory that the device reads in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from bitnet_core.errors import GpuError, OutOfMemoryError, UnsupportedError
from bitnet_core.hal import MemoryKind
from bitnet_core.hal.found import Handled
from bitnet_core.hal.words import words_of

from bitnet_vulkan.describe import KNOWN, told
from bitnet_vulkan.driver import WHOLE_SIZE, Handle, Logical, call, ffi, function, lib, make
from bitnet_vulkan.errors import BACKEND, TOO_MANY_OBJECTS, check

SMALL, PIECE = 1 << 20, 4 << 20
"""Buffers of up to SMALL bytes share pieces of PIECE bytes: drivers allow as few as 4,096 allocations."""


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


class Allocator:
    """Allocates buffers of one device."""

    def __init__(self, device: Logical, physical: Handled) -> None:
        self._device, self._physical = device, physical
        self._memories: set[Memory] = set()
        about = told(physical.handle)
        self._types = [one["propertyFlags"] for one in about["memoryTypes"][: about["memoryTypeCount"]]]

    def free_bytes(self) -> int:
        """What the driver says is left of device-local memory, else total minus ours."""
        ours = sum(memory.nbytes for memory in self._memories)
        heaps = told(self._physical.handle)["heaps"]
        return max(0, *(int(budget - usage if budget else size - ours) for size, budget, usage in heaps))

    def allocate(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        """A bound buffer of undefined content. OutOfMemoryError carries the sizes."""
        with self._buffer(words_of(nbytes, 16)) as (handle, needs):  # kernels read whole words
            memory, first = self._reserve(needs, self._type_index(needs.memoryTypeBits, kind), nbytes)
            return self._bound(VulkanBuffer(handle, nbytes, kind, memory, first, first + needs.size), first)

    @contextmanager
    def _buffer(self, nbytes: int, **fields: Any) -> Iterator[tuple[Handle, Handle]]:
        """One without memory, and what it needs. It is destroyed where it does not get that."""
        handle = self._device.create("Buffer", "alloc", size=nbytes, **fields)
        needs = ffi().new("VkMemoryRequirements *")
        lib().vkGetBufferMemoryRequirements(self._device.handle, handle, needs)
        try:
            yield handle, needs
        except GpuError:
            self._device.destroy("Buffer", handle)
            raise

    def _bound(self, buffer: VulkanBuffer, at: int) -> VulkanBuffer:
        """Bound to its memory from byte `at` on; its range is given back where the driver refuses."""
        try:
            call("vkBindBufferMemory", "alloc", self._device.handle, buffer.handle, buffer.memory.handle, at)
        except GpuError:
            self._give_back(buffer)
            raise
        buffer.address = int(ffi().cast("uintptr_t", buffer.handle))
        return buffer

    def _type_index(self, allowed: int, kind: MemoryKind) -> int:
        for wanted in KNOWN["memory"][kind.value]:
            for index, flags in enumerate(self._types):
                if allowed >> index & 1 and flags & wanted == wanted:
                    return index
        raise UnsupportedError(f"no memory is {kind.value}", backend=BACKEND, operation="alloc")

    def _reserve(self, needs: Handle, index: int, nbytes: int) -> tuple[Memory, int]:
        """A range for a buffer of `nbytes`, and where it begins."""
        if needs.size > SMALL:
            return self._new_memory(needs.size, index, nbytes), 0
        for memory in self._memories:
            for i, (first, end) in enumerate(memory.free if memory.type_index == index else ()):
                at = words_of(first, needs.alignment)
                if at + needs.size <= end:
                    rest = (first, at), (at + needs.size, end)
                    memory.free[i : i + 1] = [part for part in rest if part[0] < part[1]]
                    return memory, at
        try:
            memory = self._new_memory(PIECE, index, nbytes)
        except OutOfMemoryError:  # a whole piece does not fit any more; the buffer may
            return self._new_memory(needs.size, index, nbytes), 0
        memory.free.append((needs.size, PIECE))
        return memory, 0

    def _new_memory(self, size: int, index: int, nbytes: int, **fields: Any) -> Memory:
        """All of it in use. nbytes: what was asked for."""
        handle, status = ffi().new("VkDeviceMemory *"), TOO_MANY_OBJECTS
        if len(self._memories) < int(self._physical.info.extra["max_allocations"]):
            wanted = make("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=index, **fields)
            status = lib().vkAllocateMemory(self._device.handle, wanted, ffi().NULL, handle)
        check(status, "alloc", requested=nbytes, free=self.free_bytes() if status else -1)
        memory = Memory(self._device.own("DeviceMemory", handle[0]), size, index, [])
        self._memories.add(memory)
        return memory

    def map(self, buffer: VulkanBuffer) -> memoryview:
        """The bytes of a HOST buffer with memory of its own, mapped for as long as it lives."""
        pointer = ffi().new("void **")
        call("vkMapMemory", "alloc", self._device.handle, buffer.memory.handle, 0, WHOLE_SIZE, 0, pointer)
        return memoryview(ffi().buffer(pointer[0], buffer.nbytes)).cast("B")

    def release(self, buffer: VulkanBuffer) -> None:
        """Destroy a buffer that the device no longer uses, and its memory when nothing else lives there."""
        self._device.destroy("Buffer", buffer.handle)
        self._give_back(buffer)

    def _give_back(self, buffer: VulkanBuffer) -> None:
        memory, free = buffer.memory, list[tuple[int, int]]()
        for first, end in sorted([*memory.free, (buffer.first, buffer.end)]):
            if free and free[-1][1] == first:
                first = free.pop()[0]
            free.append((first, end))
        memory.free = free
        if free == [(0, memory.nbytes)]:
            self._device.destroy("DeviceMemory", memory.handle)
            self._memories.remove(memory)

    def import_host(self, host: memoryview) -> VulkanBuffer | None:
        """A buffer over `host`, which the caller keeps alive; None where its place or the driver does not allow it.

        Whole pages are imported, the buffer is the part of them that `host` is.
        """
        page, address = int(self._physical.info.extra["import"]), int(ffi().cast("uintptr_t", ffi().from_buffer(host)))
        first = address // page * page
        size, pointer = words_of(address + host.nbytes, page) - first, ffi().cast("void *", first)
        place, external = make("VkImportMemoryHostPointerInfoEXT"), make("VkExternalMemoryBufferCreateInfo")
        place.pHostPointer, found = pointer, make("VkMemoryHostPointerPropertiesEXT")
        ask, words = function("vkGetMemoryHostPointerPropertiesEXT", self._device.handle), words_of(host.nbytes)
        with suppress(GpuError), self._buffer(words, pNext=external) as (handle, needs):  # never past the last page
            check(ask(self._device.handle, place.handleType, pointer, found), "alloc")
            allowed = found.memoryTypeBits & needs.memoryTypeBits
            if not allowed or (address - first) % needs.alignment or first + size < address + needs.size:
                raise UnsupportedError("this host memory cannot be imported", backend=BACKEND, operation="alloc")
            memory = self._new_memory(size, (allowed & -allowed).bit_length() - 1, host.nbytes, pNext=place)
            # all of the memory is the buffer's, so that freeing one frees the other
            return self._bound(VulkanBuffer(handle, host.nbytes, MemoryKind.SHARED, memory, 0, size), address - first)
        return None
