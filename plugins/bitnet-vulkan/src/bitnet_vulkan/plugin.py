"""Entry point of the Vulkan backend; importing it loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Return the backend of all GPUs (and software devices) with Vulkan 1.1 and push descriptors."""
    return LazyBackend("vulkan", (2, 1), "bitnet_vulkan.describe:usable", "bitnet_vulkan.device:VulkanDevice")
