"""Buffers, each with its own allocation, and imported host memory."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import NamedTuple

from bitnet_hal.errors import GpuError, UnsupportedError
from bitnet_hal.plugin import CommandListDevice, EnumeratedDevice, Handle, MemoryKind, TransferMode, words_of

from bitnet_vulkan.describe import KNOWN
from bitnet_vulkan.driver import BACKEND, TOO_MANY_OBJECTS, check, function, vk
from bitnet_vulkan.properties import create_logical, query_properties
from bitnet_vulkan.recording import TRANSFER, Commands, VulkanBuffer, VulkanKernel

SLOTS = 5
"""Staging slots, one of them for downloads."""
SLOT = 8 << 20
"""Bytes of a staging slot: enough to keep the bus busy, small beside any model."""


class Allocation(NamedTuple):
    """Memory for one buffer.

    size: bytes. types: a bit mask of memory types. offset: start of the buffer. import_info: the struct that imports
    host memory, or NULL.
    """

    offset: int
    size: int
    types: int
    import_info: Handle


class MemoryDevice(CommandListDevice[VulkanBuffer, VulkanKernel, Commands]):
    """A logical device and its memory."""

    def __init__(self, physical: EnumeratedDevice) -> None:
        super().__init__(physical.info)
        self._physical = physical.handle
        self._device = create_logical(physical)
        about = query_properties(self._physical)
        types = about["memoryTypes"][: about["memoryTypeCount"]]
        self._type_flags = [memory_type["propertyFlags"] for memory_type in types]

    def free_memory(self) -> int:
        """Return the free bytes of the driver's budget of device-local memory.

        Without a budget, total minus buffers.
        """
        allocated = sum(buffer.nbytes for buffer in self._buffers.values())
        heaps = query_properties(self._physical)["heaps"]
        return max(0, *(int(budget - usage if budget else size - allocated) for size, budget, usage in heaps))

    def _alloc(self, nbytes: int, kind: MemoryKind) -> VulkanBuffer:
        buffer = self._new(nbytes, kind)
        vk().lib.vkCmdFillBuffer(self._commands().follow(TRANSFER), buffer.handle, 0, words_of(nbytes, 16), 0)
        return buffer

    def _wrap(self, host: memoryview) -> VulkanBuffer | None:
        """Import the pages that contain `host` and bind a buffer to them. Returns None if the driver refuses."""
        if self.info.transfer is not TransferMode.UNIFIED:
            return None
        page = int(self.info.extra["import"])
        address = vk().address(host)
        offset = address % page
        size = words_of(offset + host.nbytes, page)
        first_page = vk().ffi.cast("void *", address - offset)
        import_info = vk().make("VkImportMemoryHostPointerInfoEXT", pHostPointer=first_page)
        query = function("vkGetMemoryHostPointerPropertiesEXT")
        with suppress(GpuError):
            found = vk().given(query, "alloc", self._device.handle, import_info.handleType, first_page)
            imported = Allocation(offset, size, found["memoryTypeBits"], import_info)
            return self._new(host.nbytes, MemoryKind.SHARED, imported)
        return None

    def _new(self, nbytes: int, kind: MemoryKind, imported: Allocation | None = None) -> VulkanBuffer:
        """Create a buffer of undefined content, in imported pages if given. Raises OutOfMemoryError with the sizes."""
        device = self._device
        with ExitStack() as undo:
            size = words_of(nbytes, 4 if imported else 16)  # kernels read whole words, but never past the last page
            external = {"pNext": vk().make("VkExternalMemoryBufferCreateInfo")} if imported else {}
            handle = device.create("Buffer", {"size": size, **external}, operation="alloc")
            undo.callback(device.destroy, "Buffer", handle)
            needs = vk().given("vkGetBufferMemoryRequirements", "alloc", device.handle, handle)
            allocation = imported or Allocation(0, needs["size"], -1, vk().null)
            memory = self._allocate(needs, allocation, "wrapped" if imported else kind.value, nbytes)
            undo.callback(device.destroy, "DeviceMemory", memory)
            vk().call("vkBindBufferMemory", "alloc", device.handle, handle, memory, allocation.offset)
            undo.pop_all()
        return VulkanBuffer(handle, memory, nbytes, kind, int(vk().ffi.cast("uintptr_t", handle)))

    def _allocate(self, needs: dict[str, int], allocation: Allocation, kind: str, nbytes: int) -> Handle:
        """Allocate memory of a kind in devices.toml. needs: the VkMemoryRequirements. nbytes: for the error message."""
        mask = needs["memoryTypeBits"] & allocation.types
        allowed = [index for index in range(len(self._type_flags)) if mask & 1 << index]
        types = [
            index for flags in KNOWN["memory"][kind] for index in allowed if self._type_flags[index] & flags == flags
        ]
        misaligned = allocation.offset % needs["alignment"]
        if not types or misaligned or allocation.offset + needs["size"] > allocation.size:
            raise UnsupportedError(f"the device has no {kind} memory", backend=BACKEND, operation="alloc")
        handle = vk().ffi.new("VkDeviceMemory *")
        status = TOO_MANY_OBJECTS
        if len(self._buffers) + SLOTS < int(self.info.extra["max_allocations"]):
            allocate_info = vk().make(
                "VkMemoryAllocateInfo",
                pNext=allocation.import_info,
                allocationSize=allocation.size,
                memoryTypeIndex=types[0],
            )
            status = vk().lib.vkAllocateMemory(self._device.handle, allocate_info, vk().null, handle)
        check(status, "alloc", requested=nbytes, free=self.free_memory() if status else -1)
        return self._device.own("DeviceMemory", handle[0])

    def _free(self, buffer: VulkanBuffer) -> None:
        if not self._closed:  # closing destroys the device with all that is left, also after a timeout
            self._wait()
            self._device.destroy("Buffer", buffer.handle)
            self._device.destroy("DeviceMemory", buffer.memory)
