"""Buffers, each with memory of its own, and host memory that the device reads in place."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import NamedTuple

from bitnet_hal.errors import GpuError, UnsupportedError
from bitnet_hal.plugin import CommandListDevice, EnumeratedDevice, Handle, MemoryKind, TransferMode, words_of

from bitnet_vulkan.describe import KNOWN, logical, told
from bitnet_vulkan.driver import BACKEND, TOO_MANY_OBJECTS, check, function, vk
from bitnet_vulkan.recording import TRANSFER, Commands, VulkanBuffer, VulkanKernel

SLOTS, SLOT = 5, 8 << 20
"""Staging slots, one of them for downloads, and their bytes: enough to keep the bus busy, small beside any model."""


class Pages(NamedTuple):
    """Where a buffer begins in `size` bytes of memory of one of these types (bits). host: what imports the host's."""

    at: int
    size: int
    types: int
    host: Handle


class MemoryDevice(CommandListDevice[VulkanBuffer, VulkanKernel, Commands]):
    """What a device does with its memory."""

    def __init__(self, physical: EnumeratedDevice) -> None:
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
        vk().lib.vkCmdFillBuffer(self._commands().follow(TRANSFER), buffer.handle, 0, words_of(nbytes, 16), 0)
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
            memory = self._memory(needs, place, "wrapped" if pages else kind.value, nbytes)
            undo.callback(device.destroy, "DeviceMemory", memory)
            vk().call("vkBindBufferMemory", "alloc", device.handle, handle, memory, place.at)
            undo.pop_all()
        return VulkanBuffer(handle, memory, nbytes, kind, int(vk().ffi.cast("uintptr_t", handle)))

    def _memory(self, needs: dict[str, int], place: Pages, kind: str, nbytes: int) -> Handle:
        """Of a kind in devices.toml. nbytes: what was asked for."""
        allowed = [i for i in range(len(self._types)) if needs["memoryTypeBits"] & place.types & 1 << i]
        types = [i for best in KNOWN["memory"][kind] for i in allowed if self._types[i] & best == best]
        if not types or place.at % needs["alignment"] or place.at + needs["size"] > place.size:
            raise UnsupportedError(f"no memory is {kind}", backend=BACKEND, operation="alloc")
        handle, status = vk().ffi.new("VkDeviceMemory *"), TOO_MANY_OBJECTS
        if len(self._buffers) + SLOTS < int(self.info.extra["max_allocations"]):
            sizes = {"allocationSize": place.size, "memoryTypeIndex": types[0]}
            wanted = vk().make("VkMemoryAllocateInfo", pNext=place.host, **sizes)
            status = vk().lib.vkAllocateMemory(self._device.handle, wanted, vk().null, handle)
        check(status, "alloc", requested=nbytes, free=self.free_memory() if status else -1)
        return self._device.own("DeviceMemory", handle[0])

    def _free(self, buffer: VulkanBuffer) -> None:
        if not self._closed:  # else it goes with the device, also where waiting gave up
            self._wait()
            self._device.destroy("Buffer", buffer.handle)
            self._device.destroy("DeviceMemory", buffer.memory)
