"""Host memory that the device reads where it is (VK_EXT_external_memory_host), for devices that share memory."""

from __future__ import annotations

from typing import Any

from bitnet_core.hal import MemoryKind, TransferMode

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make
from bitnet_vulkan.errors import VkResult
from bitnet_vulkan.instance import PhysicalDevice
from bitnet_vulkan.memory import BufferState, Memory, VulkanBuffer

_HOST_ALLOCATION = 0x80
"""VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT."""


def shares_memory(physical: PhysicalDevice) -> bool:
    """Whether reading host memory in place costs a device nothing."""
    return physical.info.transfer is TransferMode.UNIFIED


def import_host(device: Handle, physical: PhysicalDevice, host: memoryview) -> VulkanBuffer | None:
    """A buffer over `host`, which the caller keeps alive; None where its place or the driver does not allow it.

    Whole pages are imported, the buffer is the part of them that `host` is.
    """
    page = physical.features.host_alignment
    kept = ffi().from_buffer(host)
    address = int(ffi().cast("uintptr_t", kept))
    first = address // page * page
    size = -(-(address + host.nbytes) // page) * page - first
    types = _memory_types(device, first)
    external = make("VkExternalMemoryBufferCreateInfo", handleTypes=_HOST_ALLOCATION)
    usage = constant("VK_BUFFER_USAGE_STORAGE_BUFFER_BIT") | constant("VK_BUFFER_USAGE_TRANSFER_SRC_BIT")
    words = -(-host.nbytes // 4) * 4  # never past the last page
    create = make("VkBufferCreateInfo", pNext=external, size=words, usage=usage)
    handle = ffi().new("VkBuffer *")
    if lib().vkCreateBuffer(device, create, ffi().NULL, handle) != VkResult.SUCCESS:
        return None
    needs = ffi().new("VkMemoryRequirements *")
    lib().vkGetBufferMemoryRequirements(device, handle[0], needs)
    allowed = types & needs.memoryTypeBits
    memory = ffi().new("VkDeviceMemory *")
    if allowed and (address - first) % needs.alignment == 0 and first + size >= address + needs.size:
        pointer = ffi().cast("void *", first)
        place = make("VkImportMemoryHostPointerInfoEXT", handleType=_HOST_ALLOCATION, pHostPointer=pointer)
        index = (allowed & -allowed).bit_length() - 1
        create = make("VkMemoryAllocateInfo", pNext=place, allocationSize=size, memoryTypeIndex=index)
        if lib().vkAllocateMemory(device, create, ffi().NULL, memory) == VkResult.SUCCESS:
            buffer = VulkanBuffer(  # it owns all of its memory, so freeing it frees that
                handle[0], host.nbytes, MemoryKind.SHARED, Memory(memory[0], size, index, []), 0, size
            )
            buffer.enter(BufferState.ALLOCATED)
            if lib().vkBindBufferMemory(device, handle[0], memory[0], address - first) == VkResult.SUCCESS:
                buffer.enter(BufferState.BOUND)
                buffer.enter(BufferState.IN_USE)
                return buffer
            lib().vkFreeMemory(device, memory[0], ffi().NULL)
    lib().vkDestroyBuffer(device, handle[0], ffi().NULL)
    return None


def _memory_types(device: Handle, address: int) -> int:
    """Memory types that a host address can be imported as, one bit each."""
    name = "vkGetMemoryHostPointerPropertiesEXT"
    function: Any = ffi().cast(f"PFN_{name}", lib().vkGetDeviceProcAddr(device, name.encode()))
    properties = make("VkMemoryHostPointerPropertiesEXT")
    status = function(device, _HOST_ALLOCATION, ffi().cast("void *", address), properties)
    return int(properties.memoryTypeBits) if status == VkResult.SUCCESS else 0
