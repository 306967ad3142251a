"""Entry point of the Level Zero backend. Importing this loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_core.hal.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """All GPUs of all Level Zero drivers, in the order of the loader, each followed by its tiles."""
    return LazyBackend(
        "level-zero", (2, 0), "bitnet_levelzero.describe:device_infos", "bitnet_levelzero.device:open_device"
    )
