"""The environment variables that bitnet reads.

BITNET_DEVICE                          device request, as for `--device`
BITNET_GPU_BACKEND, BITNET_GPU_DEVICE  backend and index, composed into a device request
BITNET_GPU_FAKE                        comma list of backends to imitate; empty or "none" hides all GPUs
BITNET_STRICT_MODE                     ignore fakes, treat a model file's warnings as errors
BITNET_STRICT_NO_FAKE_GPU              refuse to start while BITNET_GPU_FAKE names a backend
BITNET_GPU_TIMEOUT                     seconds before a wait for a device fails (5; 60 for software devices)
BITNET_CONFIG                          configuration file instead of the user's own
BITNET_LOG                             levels per package: "bitnet_core=debug,bitnet_cuda=info"
"""

from __future__ import annotations

import os

from bitnet_hal.errors import UsageError
from bitnet_hal.settings import setting

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


def flag(name: str) -> bool:
    """Return whether a variable is on (1, true, yes, on). Raises UsageError for a value that is neither on nor off."""
    text = os.environ.get(name, "").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise UsageError(f"{name}={text} is neither on (1, true, yes, on) nor off (0, false, no, off, empty)")


def strict_mode() -> bool:
    """Return whether strict mode is on: BITNET_STRICT_MODE if set, else the configuration file."""
    return flag("BITNET_STRICT_MODE") if os.environ.get("BITNET_STRICT_MODE") else bool(setting("strict"))
