"""Loading of the HIP runtime, with the reason if it cannot be used."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BackendUnavailableError

from bitnet_rocm.errors import check

KFD = Path("/dev/kfd")
"""The device node through which Linux programs use AMD GPUs."""


@cache
def driver() -> Any:
    """Return hip-python's hip module, initialised. Raises BackendUnavailableError with the missing part and the fix."""
    try:
        from hip import hip
    except ImportError as exc:
        raise unavailable(f"hip-python cannot be imported: {exc}", install_command("bitnet-rocm")) from exc
    module: Any = hip  # most of it has no types
    try:
        result = module.hipInit(0)
        count = module.hipGetDeviceCount()
    except RuntimeError as exc:  # a library or a symbol is missing; the bindings show its name as bytes
        reason = str(exc).rpartition(": b'")[2].rstrip("'")
        raise unavailable(f"the HIP runtime cannot be loaded: {reason}", installing()) from exc
    if int(result[0]) or int(count[0]) or not int(count[1]):
        if hint := no_permission():
            raise unavailable("the GPUs may not be opened", hint)
        check(result, "initialise the runtime")
        check(count, "list devices")
    return module


def installing() -> str:
    """Return the installation hint for this system."""
    if sys.platform == "win32":
        return "Install AMD's HIP SDK for Windows, and set HIP_PATH to its folder"
    return "Install ROCm 6.2 or later (https://rocm.docs.amd.com), or set ROCM_PATH to its folder"


def no_permission() -> str:
    """Return the hint for a user without permission to open /dev/kfd, "" if that is not the reason."""
    if not KFD.exists() or os.access(KFD, os.R_OK | os.W_OK):
        return ""
    return f"{KFD} may not be opened: `sudo usermod -aG render,video $USER`, then log in again"


def unavailable(message: str, hint: str) -> BackendUnavailableError:
    """Build the error of a plugin that cannot be used on this machine."""
    return BackendUnavailableError(message, backend="rocm", operation="load", hint=hint)
