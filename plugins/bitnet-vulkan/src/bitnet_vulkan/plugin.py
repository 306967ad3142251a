"""Entry point of the Vulkan backend; importing it loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class VulkanBackend:
    """Every GPU (and software device) with Vulkan 1.1 and push descriptors."""

    name = "vulkan"
    api = (2, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        """All physical devices that can be used; BackendUnavailableError says what is missing."""
        from bitnet_vulkan.describe import usable
        from bitnet_vulkan.driver import Instance

        with Instance() as instance:
            return usable(instance)

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        from bitnet_vulkan.device import VulkanDevice

        return VulkanDevice(index)


@hookimpl
def bitnet_backend() -> VulkanBackend:
    """Offer the backend to core."""
    return VulkanBackend()
