"""Entry point of the OpenCL backend. Importing this loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Return the backend of all devices of all OpenCL platforms, in the drivers' order."""
    return LazyBackend("opencl", (2, 1), "bitnet_opencl.describe:usable", "bitnet_opencl.device:OpenCLDevice")
