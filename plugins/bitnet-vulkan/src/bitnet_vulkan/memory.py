"""Buffers, each with memory of its own, and host memory that the device reads in place."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NamedTuple

from bitnet_core.errors import GpuError, UnsupportedError
from bitnet_core.hal.plugin import Handle, Handled, MemoryKind, words_of

from bitnet_vulkan.describe import KNOWN, told
from bitnet_vulkan.driver import BACKEND, TOO_MANY_OBJECTS, Logical, check, function, vk


@dataclass(eq=False, slots=True)
class VulkanBuffer:
    """A VkBuffer and its VkDeviceMemory, which has `size` bytes. address: the handle as descriptors have it."""

    handle: Handle
    memory: Handle
    size: int
    nbytes: int
    kind: MemoryKind
    address: int


class Pages(NamedTuple):
    """Where a buffer begins in `size` bytes of memory of one of these types (bits). host: what says that it is the
    host's."""

    at: int
    size: int
    types: int
    host: Handle


class Allocator:
    """Allocates buffers of one device."""

    def __init__(self, device: Logical, physical: Handled) -> None:
        self._device, (self._physical, self._info) = device, physical
        self._buffers: set[VulkanBuffer] = set()
        about = told(self._physical)
        self._types = [one["propertyFlags"] for one in about["memoryTypes"][: about["memoryTypeCount"]]]

    def free_bytes(self) -> int:
        """What the driver says is left of device-local memory, else total minus ours."""
        ours = sum(buffer.size for buffer in self._buffers)
        heaps = told(self._physical)["heaps"]
        return max(0, *(int(budget - usage if budget else size - ours) for size, budget, usage in heaps))

    def allocate(self, nbytes: int, kind: MemoryKind, pages: Pages | None = None) -> VulkanBuffer:
        """A buffer of undefined content, in these pages where there are some. OutOfMemoryError carries the sizes."""
        device = self._device
        with ExitStack() as undo:
            outside = {"pNext": vk().make("VkExternalMemoryBufferCreateInfo")} if pages else {}
            size = words_of(nbytes, 4 if pages else 16)  # kernels read whole words, but never past the last page
            handle = device.create("Buffer", "alloc", size=size, **outside)
            undo.callback(device.destroy, "Buffer", handle)
            needs = vk().given("vkGetBufferMemoryRequirements", "alloc", device.handle, handle)
            place = pages or Pages(0, needs["size"], -1, vk().null)
            index = self._type_index(needs, place, "wrapped" if pages else kind.value)
            memory = self._memory(place, index, nbytes)
            undo.callback(device.destroy, "DeviceMemory", memory)
            vk().call("vkBindBufferMemory", "alloc", device.handle, handle, memory, place.at)
            undo.pop_all()
        buffer = VulkanBuffer(handle, memory, place.size, nbytes, kind, int(vk().ffi.cast("uintptr_t", handle)))
        self._buffers.add(buffer)
        return buffer

    def _type_index(self, needs: dict[str, int], place: Pages, kind: str) -> int:
        allowed = needs["memoryTypeBits"] & place.types
        fits = place.at % needs["alignment"] == 0 and place.at + needs["size"] <= place.size
        for wanted in KNOWN["memory"][kind] if fits else ():
            for index, flags in enumerate(self._types):
                if allowed >> index & 1 and flags & wanted == wanted:
                    return index
        raise UnsupportedError(f"no memory is {kind}", backend=BACKEND, operation="alloc")

    def _memory(self, place: Pages, index: int, nbytes: int) -> Handle:
        """nbytes: what was asked for."""
        handle, status = vk().ffi.new("VkDeviceMemory *"), TOO_MANY_OBJECTS
        if len(self._buffers) < int(self._info.extra["max_allocations"]):
            sizes = {"allocationSize": place.size, "memoryTypeIndex": index}
            wanted = vk().make("VkMemoryAllocateInfo", pNext=place.host, **sizes)
            status = vk().lib.vkAllocateMemory(self._device.handle, wanted, vk().null, handle)
        check(status, "alloc", requested=nbytes, free=self.free_bytes() if status else -1)
        return self._device.own("DeviceMemory", handle[0])

    def map(self, buffer: VulkanBuffer) -> memoryview:
        """The bytes of a HOST buffer, mapped for as long as it lives."""
        pointer = vk().given("vkMapMemory", "alloc", self._device.handle, buffer.memory, 0, buffer.nbytes, 0)
        return memoryview(vk().ffi.buffer(pointer, buffer.nbytes)).cast("B")

    def release(self, buffer: VulkanBuffer) -> None:
        """Destroy a buffer that the device no longer uses."""
        self._device.destroy("Buffer", buffer.handle)
        self._device.destroy("DeviceMemory", buffer.memory)
        self._buffers.remove(buffer)

    def import_host(self, host: memoryview) -> VulkanBuffer | None:
        """A buffer over `host`, which the caller keeps alive; None where its place or the driver does not allow it.

        Whole pages are imported, the buffer is the part of them that `host` is.
        """
        page, address = int(self._info.extra["import"]), vk().address(host)
        at = address % page
        size, first = words_of(at + host.nbytes, page), vk().ffi.cast("void *", address - at)
        place = vk().make("VkImportMemoryHostPointerInfoEXT", pHostPointer=first)
        ask = function("vkGetMemoryHostPointerPropertiesEXT"), "alloc", self._device.handle, place.handleType, first
        with suppress(GpuError):
            types = vk().given(*ask)["memoryTypeBits"]
            return self.allocate(host.nbytes, MemoryKind.SHARED, Pages(at, size, types, place))
        return None
