"""The one place where a VkResult becomes an exception."""

from __future__ import annotations

from pathlib import Path

from bitnet_core.hal.failures import Statuses

BACKEND = "vulkan"
TIMEOUT, TOO_MANY_OBJECTS, DEVICE_LOST = 2, -10, -4
STATUSES = Statuses(
    Path(__file__).with_name("errors.toml"), BACKEND, lambda status, name: f"{name or 'VkResult'} ({status})"
)
check = STATUSES.check
