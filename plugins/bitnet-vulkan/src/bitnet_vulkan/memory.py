"""Buffers: memory types, small ones in shared pieces of memory, and host memory that the device reads in place."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from bitnet_core.errors import GpuError, OutOfMemoryError, UnsupportedError
from bitnet_core.hal import MemoryKind
from bitnet_core.hal.c_library import Handle
from bitnet_core.hal.found import Handled
from bitnet_core.hal.words import words_of

from bitnet_vulkan.describe import KNOWN, told
from bitnet_vulkan.driver import WHOLE_SIZE, Logical, function, vk
from bitnet_vulkan.errors import BACKEND, TOO_MANY_OBJECTS, check

SMALL, PIECE = 1 << 20, 4 << 20
"""Buffers of up to SMALL bytes share pieces of PIECE bytes: drivers allow as few as 4,096 allocations."""


@dataclass(eq=False, slots=True)
class Memory:
    """One VkDeviceMemory, and the ranges of it that are taken (first byte, end), in order."""

    handle: Handle
    nbytes: int
    type_index: int
    taken: list[tuple[int, int]]

    def take(self, nbytes: int, alignment: int) -> int | None:
        """The first byte of the first range that is free; None where none is large enough."""
        at = 0
        for i, (first, end) in enumerate([*self.taken, (self.nbytes, self.nbytes)]):
            if at + nbytes <= first:
                self.taken.insert(i, (at, at + nbytes))
                return at
            at = words_of(end, alignment)
        return None


@dataclass(eq=False, slots=True)
class VulkanBuffer:
    """A VkBuffer bound to a range (first byte, end) of a Memory."""

    handle: Handle
    nbytes: int
    kind: MemoryKind
    memory: Memory
    place: tuple[int, int]
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
        with ExitStack() as undo:
            handle, needs = self._buffer(undo, words_of(nbytes, 16))  # kernels read whole words
            memory, first = self._reserve(needs, self._type_index(needs["memoryTypeBits"], kind), nbytes)
            buffer = VulkanBuffer(handle, nbytes, kind, memory, (first, first + needs["size"]))
            return self._bound(undo, buffer, first)

    def _buffer(self, undo: ExitStack, nbytes: int, **fields: Any) -> tuple[Handle, dict[str, int]]:
        """One without memory, and what it needs. It is destroyed where it does not get that."""
        handle = self._device.create("Buffer", "alloc", size=nbytes, **fields)
        undo.callback(self._device.destroy, "Buffer", handle)
        return handle, vk().given("vkGetBufferMemoryRequirements", "alloc", self._device.handle, handle)

    def _bound(self, undo: ExitStack, buffer: VulkanBuffer, at: int) -> VulkanBuffer:
        """Bound to its memory from byte `at` on; its range is given back where the driver refuses."""
        undo.callback(self._give_back, buffer)
        vk().call("vkBindBufferMemory", "alloc", self._device.handle, buffer.handle, buffer.memory.handle, at)
        undo.pop_all()
        buffer.address = int(vk().ffi.cast("uintptr_t", buffer.handle))
        return buffer

    def _type_index(self, allowed: int, kind: MemoryKind) -> int:
        for wanted in KNOWN["memory"][kind.value]:
            for index, flags in enumerate(self._types):
                if allowed >> index & 1 and flags & wanted == wanted:
                    return index
        raise UnsupportedError(f"no memory is {kind.value}", backend=BACKEND, operation="alloc")

    def _reserve(self, needs: dict[str, int], index: int, nbytes: int) -> tuple[Memory, int]:
        """A range for a buffer of `nbytes`, and where it begins."""
        size, alignment = needs["size"], needs["alignment"]
        for memory in self._memories if size <= SMALL else ():
            if memory.type_index == index and (at := memory.take(size, alignment)) is not None:
                return memory, at
        if size <= SMALL:
            with suppress(OutOfMemoryError):  # a whole piece does not fit any more; the buffer may
                return self._new_memory(PIECE, size, index, nbytes), 0
        return self._new_memory(size, size, index, nbytes), 0

    def _new_memory(self, size: int, taken: int, index: int, nbytes: int, **fields: Any) -> Memory:
        """Its first `taken` bytes are. nbytes: what was asked for."""
        handle, status = vk().ffi.new("VkDeviceMemory *"), TOO_MANY_OBJECTS
        if len(self._memories) < int(self._physical.info.extra["max_allocations"]):
            wanted = vk().make("VkMemoryAllocateInfo", allocationSize=size, memoryTypeIndex=index, **fields)
            status = vk().lib.vkAllocateMemory(self._device.handle, wanted, vk().null, handle)
        check(status, "alloc", requested=nbytes, free=self.free_bytes() if status else -1)
        memory = Memory(self._device.own("DeviceMemory", handle[0]), size, index, [(0, taken)])
        self._memories.add(memory)
        return memory

    def map(self, buffer: VulkanBuffer) -> memoryview:
        """The bytes of a HOST buffer with memory of its own, mapped for as long as it lives."""
        where = self._device.handle, buffer.memory.handle, 0, WHOLE_SIZE, 0
        pointer = vk().given("vkMapMemory", "alloc", *where)
        return memoryview(vk().ffi.buffer(pointer, buffer.nbytes)).cast("B")

    def release(self, buffer: VulkanBuffer) -> None:
        """Destroy a buffer that the device no longer uses, and its memory when nothing else lives there."""
        self._device.destroy("Buffer", buffer.handle)
        self._give_back(buffer)

    def _give_back(self, buffer: VulkanBuffer) -> None:
        memory = buffer.memory
        memory.taken.remove(buffer.place)
        if not memory.taken:
            self._device.destroy("DeviceMemory", memory.handle)
            self._memories.remove(memory)

    def import_host(self, host: memoryview) -> VulkanBuffer | None:
        """A buffer over `host`, which the caller keeps alive; None where its place or the driver does not allow it.

        Whole pages are imported, the buffer is the part of them that `host` is.
        """
        page, address = int(self._physical.info.extra["import"]), vk().address(host)
        first = address // page * page
        size, pointer = words_of(address + host.nbytes, page) - first, vk().ffi.cast("void *", first)
        place = vk().make("VkImportMemoryHostPointerInfoEXT", pHostPointer=pointer)
        external, words = vk().make("VkExternalMemoryBufferCreateInfo"), words_of(host.nbytes)
        ask = function("vkGetMemoryHostPointerPropertiesEXT", self._device.handle)
        with suppress(GpuError), ExitStack() as undo:
            handle, needs = self._buffer(undo, words, pNext=external)  # never past the last page
            found = vk().given(ask, "alloc", self._device.handle, place.handleType, pointer)
            allowed, needed = found["memoryTypeBits"] & needs["memoryTypeBits"], address + needs["size"]
            if not allowed or (address - first) % needs["alignment"] or first + size < needed:
                raise UnsupportedError("this host memory cannot be imported", backend=BACKEND, operation="alloc")
            index = (allowed & -allowed).bit_length() - 1
            memory = self._new_memory(size, size, index, host.nbytes, pNext=place)
            # all of the memory is the buffer's, so that freeing one frees the other
            made = VulkanBuffer(handle, host.nbytes, MemoryKind.SHARED, memory, (0, size))
            return self._bound(undo, made, address - first)
        return None
