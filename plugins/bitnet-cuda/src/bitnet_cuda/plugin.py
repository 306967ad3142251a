"""The entry point of the CUDA backend; importing it loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Return the backend for NVIDIA GPUs of compute capability 7.5 or later; the driver obeys CUDA_VISIBLE_DEVICES."""
    return LazyBackend(
        "cuda",
        (2, 1),
        listing="bitnet_cuda.describe:device_infos",
        opening="bitnet_cuda.device:CudaDevice",
        begins=("libcuda.so.1", "cuInit"),
    )
