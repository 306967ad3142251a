"""Descriptor sets: one per kernel layout and tuple of views, made once and kept until a buffer of theirs is freed."""

from __future__ import annotations

from collections.abc import Sequence

from bitnet_core.hal import View

from bitnet_vulkan.binding import Handle, constant, ffi, lib, make
from bitnet_vulkan.errors import Stage, check
from bitnet_vulkan.memory import VulkanBuffer

POOL_SETS = 256
POOL_DESCRIPTORS = 8 * POOL_SETS

Key = tuple[tuple[int, int, int], ...]


class Descriptors:
    """A growing list of pools, and the sets taken from them."""

    def __init__(self, device: Handle, name: str) -> None:
        self._device, self._name = device, name
        self._pools: list[Handle] = []
        self._left = self._descriptors_left = 0  # in the newest pool
        self._sets: dict[Key, tuple[Handle, Handle]] = {}
        self._by_buffer: dict[int, set[Key]] = {}

    def _new_pool(self) -> None:
        size = make(
            "VkDescriptorPoolSize",
            type=constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER"),
            descriptorCount=POOL_DESCRIPTORS,
        )[0]
        create = make(
            "VkDescriptorPoolCreateInfo",
            flags=constant("VK_DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT"),
            maxSets=POOL_SETS,
            poolSizeCount=1,
            pPoolSizes=[size],
        )
        pool = ffi().new("VkDescriptorPool *")
        status = lib().vkCreateDescriptorPool(self._device, create, ffi().NULL, pool)
        check(status, Stage.COMMAND_BUFFER, device=self._name)
        self._pools.append(pool[0])
        self._left, self._descriptors_left = POOL_SETS, POOL_DESCRIPTORS

    def get(self, layout: Handle, views: Sequence[View]) -> Handle:
        """A pointer to the set that binds `views` in order."""
        key: Key = tuple((id(view.buffer), view.offset, view.nbytes) for view in views)
        if key in self._sets:
            return self._sets[key][0]
        if not self._left or self._descriptors_left < len(views):
            self._new_pool()
        info = make(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=self._pools[-1],
            descriptorSetCount=1,
            pSetLayouts=[layout],
        )
        handle = ffi().new("VkDescriptorSet[1]")
        check(lib().vkAllocateDescriptorSets(self._device, info, handle), Stage.COMMAND_BUFFER, device=self._name)
        self._left -= 1
        self._descriptors_left -= len(views)
        writes = []
        kept = []
        for binding, view in enumerate(views):
            buffer = view.buffer
            if not isinstance(buffer, VulkanBuffer):
                raise ValueError("a view of another device's buffer")
            words = -(-view.nbytes // 4) * 4
            target = make("VkDescriptorBufferInfo", buffer=buffer.handle, offset=view.offset, range=words)
            write = make(
                "VkWriteDescriptorSet",
                dstSet=handle[0],
                dstBinding=binding,
                descriptorCount=1,
                descriptorType=constant("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER"),
                pBufferInfo=target,
            )
            kept.append(write)
            writes.append(write[0])
            self._by_buffer.setdefault(id(buffer), set()).add(key)
        array = ffi().new("VkWriteDescriptorSet[]", writes)
        lib().vkUpdateDescriptorSets(self._device, len(writes), array, 0, ffi().NULL)
        self._sets[key] = handle, self._pools[-1]
        return handle

    def forget(self, buffer: VulkanBuffer) -> None:
        """Free the sets that bind a buffer; the device must be idle."""
        for key in self._by_buffer.pop(id(buffer), ()):
            if (entry := self._sets.pop(key, None)) is not None:
                handle, pool = entry
                lib().vkFreeDescriptorSets(self._device, pool, 1, handle)
                if pool == self._pools[-1]:
                    self._left += 1
                    self._descriptors_left += len(key)

    def close(self) -> None:
        """Destroy the pools and with them all sets."""
        for pool in self._pools:
            lib().vkDestroyDescriptorPool(self._device, pool, ffi().NULL)
