"""Entry point of the CUDA backend; importing it loads no driver."""

from __future__ import annotations

import pluggy
from bitnet_hal.driver.lazy import LazyBackend

hookimpl = pluggy.HookimplMarker("bitnet")


@hookimpl
def bitnet_backend() -> LazyBackend:
    """Every NVIDIA GPU of compute capability 7.5 or later; CUDA_VISIBLE_DEVICES is honoured by the driver."""
    return LazyBackend(
        "cuda",
        (2, 1),
        listing="bitnet_cuda.describe:device_infos",
        opening="bitnet_cuda.device:CudaDevice",
        begins=("libcuda.so.1", "cuInit"),
    )
