"""Buffers: small ones in shared pieces of memory, large ones alone, and host memory that the device reads in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from bitnet_core.errors import GpuError, OutOfMemoryError, UnsupportedError
from bitnet_core.hal import MemoryKind
from bitnet_core.hal.c_library import Handle
from bitnet_core.hal.found import Handled
from bitnet_core.hal.words import words_of

from bitnet_vulkan.describe import KNOWN, told
from bitnet_vulkan.driver import Logical, function, vk
from bitnet_vulkan.errors import BACKEND, TOO_MANY_OBJECTS, check

SMALL, PIECE = 1 << 20, 4 << 20
"""Buffers of up to SMALL bytes share pieces of PIECE bytes: drivers allow as few as 4,096 allocations."""
WORDS = 16
"""Bytes that kernels read at a time."""


@dataclass(eq=False, slots=True)
class Memory:
    """A VkBuffer and a VkDeviceMemory (`held`) that is all its own. address: the VkBuffer as descriptors have it; kind:
    as in devices.toml; taken: ranges that are a buffer's (first byte, end), in order."""

    handle: Handle
    held: Handle
    nbytes: int
    kind: str
    address: int
    taken: list[tuple[int, int]] = field(default_factory=list)

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
    """A range of a Memory, which begins at byte `at`."""

    memory: Memory
    at: int
    nbytes: int
    kind: MemoryKind


class Allocator:
    """Allocates buffers of one device."""

    def __init__(self, device: Logical, physical: Handled) -> None:
        self._device, (self._physical, self._info) = device, physical
        self._memories: set[Memory] = set()
        about = told(self._physical)
        self._types = [one["propertyFlags"] for one in about["memoryTypes"][: about["memoryTypeCount"]]]
        self._least = max(WORDS, about["minStorageBufferOffsetAlignment"])

    def free_bytes(self) -> int:
        """What the driver says is left of device-local memory, else total minus ours."""
        ours = sum(memory.nbytes for memory in self._memories)
        heaps = told(self._physical)["heaps"]
        return max(0, *(int(budget - usage if budget else size - ours) for size, budget, usage in heaps))

    def allocate(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        """A buffer of undefined content. OutOfMemoryError carries the sizes."""
        size, alignment = words_of(nbytes, WORDS), self._info.alignment
        found = ((one, one.take(size, alignment)) for one in self._places(size, kind.value, nbytes))
        memory, at = next((memory, at) for memory, at in found if at is not None)
        return VulkanBuffer(memory, at, nbytes, kind)

    def _places(self, size: int, kind: str, asked: int) -> Iterator[Memory]:
        """Those that may have room for `size` bytes, and a new one, which has."""
        if size <= SMALL:
            yield from [memory for memory in self._memories if memory.kind == kind]
            with suppress(OutOfMemoryError):  # a whole piece does not fit any more; the buffer may
                yield self._new(PIECE, kind, asked)
        yield self._new(size, kind, asked)

    def _new(self, size: int, kind: str, asked: int, allowed: int = -1, host: Handle = None) -> Memory:
        """asked: bytes, for an error. allowed: bits of its types; host: of the host's memory."""
        device, outside = self._device, {"pNext": vk().make("VkExternalMemoryBufferCreateInfo")} if host else {}
        with ExitStack() as undo:
            handle = device.create("Buffer", "alloc", size=size, **outside)
            undo.callback(device.destroy, "Buffer", handle)
            needs = vk().given("vkGetBufferMemoryRequirements", "alloc", device.handle, handle)
            index = self._type_index(needs["memoryTypeBits"] & allowed, kind)
            if host and needs["size"] > size:
                raise UnsupportedError("")
            held = self._allocated(needs["size"], index, asked, host or vk().null)
            undo.callback(device.destroy, "DeviceMemory", held)
            vk().call("vkBindBufferMemory", "alloc", device.handle, handle, held, 0)
            undo.pop_all()
        memory = Memory(handle, held, size, kind, int(vk().ffi.cast("uintptr_t", handle)))
        self._memories.add(memory)
        return memory

    def _type_index(self, allowed: int, kind: str) -> int:
        for wanted in KNOWN["memory"][kind]:
            for index, flags in enumerate(self._types):
                if allowed >> index & 1 and flags & wanted == wanted:
                    return index
        raise UnsupportedError(f"no memory is {kind}", backend=BACKEND, operation="alloc")

    def _allocated(self, size: int, index: int, asked: int, host: Handle) -> Handle:
        handle, status = vk().ffi.new("VkDeviceMemory *"), TOO_MANY_OBJECTS
        if len(self._memories) < int(self._info.extra["max_allocations"]):
            wanted = vk().make("VkMemoryAllocateInfo", pNext=host, allocationSize=size, memoryTypeIndex=index)
            status = vk().lib.vkAllocateMemory(self._device.handle, wanted, vk().null, handle)
        check(status, "alloc", requested=asked, free=self.free_bytes() if status else -1)
        return self._device.own("DeviceMemory", handle[0])

    def map(self, buffer: VulkanBuffer) -> memoryview:
        """The bytes of a HOST buffer with memory of its own, mapped for as long as it lives."""
        where = self._device.handle, buffer.memory.held, 0, buffer.nbytes, 0
        return memoryview(vk().ffi.buffer(vk().given("vkMapMemory", "alloc", *where), buffer.nbytes)).cast("B")

    def release(self, buffer: VulkanBuffer) -> None:
        """Give back the range of a buffer that the device no longer uses, and its memory when nothing else is there."""
        memory = buffer.memory
        memory.taken = [(first, end) for first, end in memory.taken if first != buffer.at]
        if not memory.taken:
            self._device.destroy("Buffer", memory.handle)
            self._device.destroy("DeviceMemory", memory.held)
            self._memories.remove(memory)

    def import_host(self, host: memoryview) -> VulkanBuffer | None:
        """A buffer over `host`, which the caller keeps alive; None where its place or the driver does not allow it.

        Whole pages are imported, of which the buffer is a range.
        """
        page, address = int(self._info.extra["import"]), vk().address(host)
        at = address % page
        size, pages = words_of(at + host.nbytes, page), vk().ffi.cast("void *", address - at)
        place = vk().make("VkImportMemoryHostPointerInfoEXT", pHostPointer=pages)
        ask = function("vkGetMemoryHostPointerPropertiesEXT")
        with suppress(GpuError):
            found = vk().given(ask, "alloc", self._device.handle, place.handleType, pages)
            if at % self._least == 0:
                memory = self._new(size, "wrapped", host.nbytes, found["memoryTypeBits"], place)
                memory.taken.append((at, at + host.nbytes))
                return VulkanBuffer(memory, at, host.nbytes, MemoryKind.SHARED)
        return None
