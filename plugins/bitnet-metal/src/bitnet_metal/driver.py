"""pyobjc's Metal, imported on first use, and why it cannot be used."""

from __future__ import annotations

import platform
import sys
from functools import cache
from typing import Any

from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BackendUnavailableError

Handle = Any  # an object of Metal: pyobjc has no static types
BACKEND, OLDEST = "metal", 13  # the macOS with Metal 3
_VALUE = {"arguments": {2: {"type": b"^v", "type_modifier": b"n", "c_array_of_fixed_length": 4}}}


def unavailable(message: str, hint: str) -> BackendUnavailableError:
    """The plugin cannot be used at all."""
    return BackendUnavailableError(message, backend=BACKEND, operation="load", hint=hint)


@cache
def module() -> Any:
    """pyobjc's `Metal`. BackendUnavailableError names what is missing and the fix."""
    version = platform.mac_ver()[0]
    if version and int(version.split(".")[0]) < OLDEST:
        raise unavailable(f"macOS {version} is too old", f"Update to macOS {OLDEST} or later")
    try:
        import Metal  # type: ignore[import-not-found]  # only on macOS
        import objc  # type: ignore[import-not-found]  # as above
    except ImportError as exc:
        if sys.platform == "darwin":
            raise unavailable(f"pyobjc cannot be imported: {exc}", install_command("bitnet-metal")) from exc
        hint = f"Use the backend of the GPU's vendor, or bitnet-webgpu ({install_command('bitnet-webgpu')})"
        raise unavailable(f"Metal is a part of macOS, and this is {platform.system()}", hint) from exc
    # pyobjc has no metadata for this method, which takes a pointer to a value: ours are all uint32.
    objc.registerMetaDataForSelector(b"MTLFunctionConstantValues", b"setConstantValue:type:atIndex:", _VALUE)
    return Metal


def pool() -> Any:
    """What Metal autoreleases inside the `with` block is freed at its end; a script has no run loop to do it."""
    import objc

    return objc.autorelease_pool()
