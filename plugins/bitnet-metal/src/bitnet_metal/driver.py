"""Import of pyobjc's Metal on first use, with the reason if it cannot be used."""

from __future__ import annotations

import platform
import sys
from functools import cache
from typing import Any

from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BackendUnavailableError

Handle = Any
"""An object of Metal; pyobjc has no static types."""
BACKEND = "metal"
MIN_MACOS = 13
"""The first macOS with Metal 3."""
_VALUE = {"arguments": {2: {"type": b"^v", "type_modifier": b"n", "c_array_of_fixed_length": 4}}}


def unavailable(message: str, hint: str) -> BackendUnavailableError:
    """Build the error of a plugin that cannot be used on this machine."""
    return BackendUnavailableError(message, backend=BACKEND, operation="load", hint=hint)


@cache
def module() -> Any:
    """Return pyobjc's `Metal`. Raises BackendUnavailableError with the missing part and how to install it."""
    version = platform.mac_ver()[0]
    if version and int(version.split(".")[0]) < MIN_MACOS:
        raise unavailable(f"macOS {version} is too old", f"Update to macOS {MIN_MACOS} or later")
    try:
        import Metal  # type: ignore[import-not-found]  # only on macOS
        import objc  # type: ignore[import-not-found]  # as above
    except ImportError as exc:
        if sys.platform == "darwin":
            raise unavailable(f"pyobjc cannot be imported: {exc}", install_command("bitnet-metal")) from exc
        hint = f"Use the backend of the GPU's vendor, or bitnet-webgpu ({install_command('bitnet-webgpu')})"
        raise unavailable(f"Metal is a part of macOS, and this is {platform.system()}", hint) from exc
    # pyobjc has no metadata for this method, which takes a pointer to a value; all of ours are uint32
    objc.registerMetaDataForSelector(b"MTLFunctionConstantValues", b"setConstantValue:type:atIndex:", _VALUE)
    return Metal


def pool() -> Any:
    """Return a context that frees autoreleased objects of Metal at its end; a script has no run loop that does it."""
    import objc

    return objc.autorelease_pool()
