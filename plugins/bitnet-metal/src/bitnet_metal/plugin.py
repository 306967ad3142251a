"""Entry point of the Metal backend; importing it loads no framework."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Return the backend of GPUs of Apple silicon, through Metal."""
    return LazyBackend("metal", (2, 1), "bitnet_metal.describe:usable", "bitnet_metal.device:MetalDevice")
