"""Entry point of the ROCm backend; importing it loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Return the backend of all AMD GPUs that the HIP runtime shows; the runtime honours HIP_VISIBLE_DEVICES."""
    return LazyBackend("rocm", (2, 1), "bitnet_rocm.describe:device_infos", "bitnet_rocm.device:RocmDevice")
