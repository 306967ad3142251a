"""Entry point of the Level Zero backend. Importing this loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Return the backend of all GPUs of all Level Zero drivers, in the loader's order, each followed by its tiles."""
    return LazyBackend(
        "level-zero", (2, 1), "bitnet_levelzero.describe:usable", "bitnet_levelzero.device:LevelZeroDevice"
    )
