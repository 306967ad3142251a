"""Entry point of the OpenCL backend. Importing this loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """All devices of all OpenCL platforms, in the order of the drivers."""
    return LazyBackend("opencl", (2, 1), "bitnet_opencl.describe:usable", "bitnet_opencl.device:OpenCLDevice")
