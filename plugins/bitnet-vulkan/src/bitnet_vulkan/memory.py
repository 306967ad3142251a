"""Buffers, each with memory of its own, and host memory that the device reads in place."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NamedTuple

from bitnet_core.errors import GpuError, UnsupportedError
from bitnet_core.hal.plugin import CommandListDevice, Handle, Handled, MemoryKind, TransferMode, words_of

from bitnet_vulkan.compile import VulkanKernel
from bitnet_vulkan.describe import KNOWN, logical, told
from bitnet_vulkan.driver import BACKEND, TOO_MANY_OBJECTS, check, function, vk
from bitnet_vulkan.recording import TRANSFER, Commands

WHOLE_SIZE = 0xFFFFFFFFFFFFFFFF


@dataclass(eq=False, slots=True)
class VulkanBuffer:
    """A VkBuffer and its VkDeviceMemory. address: the handle as descriptors have it."""

    handle: Handle
    memory: Handle
    nbytes: int
    kind: MemoryKind
    address: int


class Pages(NamedTuple):
    """Where a buffer begins in `size` bytes of memory of one of these types (bits). host: a struct that says which they
    are, where they are the host's."""

    at: int
    size: int
    types: int
    host: Handle


class MemoryDevice(CommandListDevice[VulkanBuffer, VulkanKernel, Commands]):
    """What a device does with its memory."""

    def __init__(self, physical: Handled) -> None:
        super().__init__(physical.info)
        self._physical, self._device = physical.handle, logical(physical)
        about = told(self._physical)
        self._types = [one["propertyFlags"] for one in about["memoryTypes"][: about["memoryTypeCount"]]]

    def free_memory(self) -> int:
        """What the driver says is left of device-local memory, else total minus ours."""
        ours, heaps = sum(one.nbytes for one in self._buffers.values()), told(self._physical)["heaps"]
        return max(0, *(int(budget - usage if budget else size - ours) for size, budget, usage in heaps))

    def _alloc(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        buffer = self._new(nbytes, kind)
        vk().lib.vkCmdFillBuffer(self._commands().follow(TRANSFER), buffer.handle, 0, WHOLE_SIZE, 0)
        return buffer

    def _wrap(self, host: memoryview) -> VulkanBuffer | None:
        """Whole pages are imported, the buffer is the part of them that `host` is; None where the driver refuses."""
        if self.info.transfer is not TransferMode.UNIFIED:
            return None
        page, address = int(self.info.extra["import"]), vk().address(host)
        at = address % page
        size, first = words_of(at + host.nbytes, page), vk().ffi.cast("void *", address - at)
        place = vk().make("VkImportMemoryHostPointerInfoEXT", pHostPointer=first)
        ask = function("vkGetMemoryHostPointerPropertiesEXT"), "alloc", self._device.handle, place.handleType, first
        with suppress(GpuError):
            types = vk().given(*ask)["memoryTypeBits"]
            return self._new(host.nbytes, MemoryKind.SHARED, Pages(at, size, types, place))
        return None

    def _new(self, nbytes: int, kind: MemoryKind, pages: Pages | None = None) -> VulkanBuffer:
        """Of undefined content, in these pages where there are some. OutOfMemoryError carries the sizes."""
        device = self._device
        with ExitStack() as undo:
            size = words_of(nbytes, 4 if pages else 16)  # kernels read whole words, but never past the last page
            outside = {"pNext": vk().make("VkExternalMemoryBufferCreateInfo")} if pages else {}
            handle = device.create("Buffer", {"size": size, **outside}, operation="alloc")
            undo.callback(device.destroy, "Buffer", handle)
            needs = vk().given("vkGetBufferMemoryRequirements", "alloc", device.handle, handle)
            place = pages or Pages(0, needs["size"], -1, vk().null)
            index = self._type_index(needs, place, "wrapped" if pages else kind.value)
            memory = self._memory(place, index, nbytes)
            undo.callback(device.destroy, "DeviceMemory", memory)
            vk().call("vkBindBufferMemory", "alloc", device.handle, handle, memory, place.at)
            undo.pop_all()
        return VulkanBuffer(handle, memory, nbytes, kind, int(vk().ffi.cast("uintptr_t", handle)))

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
        if len(self._buffers) < int(self.info.extra["max_allocations"]):
            sizes = {"allocationSize": place.size, "memoryTypeIndex": index}
            wanted = vk().make("VkMemoryAllocateInfo", pNext=place.host, **sizes)
            status = vk().lib.vkAllocateMemory(self._device.handle, wanted, vk().null, handle)
        check(status, "alloc", requested=nbytes, free=self.free_memory() if status else -1)
        return self._device.own("DeviceMemory", handle[0])

    def _free(self, buffer: VulkanBuffer) -> None:
        if not self._closed:  # else it goes with the device, also where waiting gave up
            self._wait()
            self._device.destroy("Buffer", buffer.handle)
            self._device.destroy("DeviceMemory", buffer.memory)
