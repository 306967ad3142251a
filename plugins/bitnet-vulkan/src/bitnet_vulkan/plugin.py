"""Entry point of the Vulkan backend; importing it loads no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from bitnet_core.hal import Device, DeviceInfo

hookimpl = pluggy.HookimplMarker("bitnet")


class VulkanBackend:
    """Every GPU (and software device) with Vulkan 1.1."""

    name = "vulkan"
    api = (1, 1)

    def devices(self) -> Sequence[DeviceInfo]:
        """All physical devices with a compute queue; BackendUnavailableError says what is missing."""
        from bitnet_vulkan.instance import Instance

        with Instance() as instance:
            return [physical.info for physical in instance.physical_devices()]

    def open(self, index: int) -> Device:
        """Open one of `devices()`."""
        from bitnet_vulkan.device import VulkanDevice

        return VulkanDevice(index)


@hookimpl
def bitnet_backend() -> VulkanBackend:
    """Offer the backend to core."""
    return VulkanBackend()
