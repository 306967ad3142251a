"""The NVIDIA driver: its functions, and a check that it supports the cubins of NVRTC."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BackendUnavailableError

from bitnet_cuda.errors import check

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NEEDED = 13000
"""The CUDA version that the driver must support, since NVRTC 13 compiles the kernels; see cuDriverGetVersion."""
INSTALL = "Install the NVIDIA driver, release 580 or later"


@cache
def driver() -> Any:
    """Return the driver module of cuda.bindings, initialised.

    Raises BackendUnavailableError if there is no driver, or if it is too old.
    """
    try:
        ctypes.CDLL(LIBRARY)  # first, since importing the bindings takes longer
        from cuda.bindings import driver as module  # type: ignore[import-untyped]  # no types
    except OSError as exc:
        raise unavailable("the NVIDIA driver's libcuda is not installed", INSTALL) from exc
    except ImportError as exc:
        raise unavailable(f"cuda-bindings do not load: {exc}", install_command("bitnet-cuda")) from exc
    check(module.cuInit(0), "initialise the driver")
    version = int(check(module.cuDriverGetVersion(), "initialise the driver")[0])
    if version < NEEDED:
        found = version_text(version)
        needed = version_text(NEEDED)
        raise unavailable(f"the NVIDIA driver supports CUDA {found}, and {needed} is needed", INSTALL)
    return module


def version_text(version: int) -> str:
    """Return a version of cuDriverGetVersion as text: 13020 as "13.2"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def unavailable(message: str, hint: str) -> BackendUnavailableError:
    """Return the error for a machine on which the plugin cannot be used."""
    return BackendUnavailableError(message, backend="cuda", operation="load", hint=hint)
