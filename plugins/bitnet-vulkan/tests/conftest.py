"""The device that the tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bitnet_hal.errors import BackendUnavailableError
from bitnet_vulkan.describe import usable
from bitnet_vulkan.device import VulkanDevice


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    """Open the first device."""
    try:
        opened = VulkanDevice(usable()[0])
    except BackendUnavailableError as exc:
        pytest.skip(str(exc))
    yield opened
    opened.close()
