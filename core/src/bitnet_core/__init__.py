"""1.58-bit language models on any vendor's hardware."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet_core.hal.selection import devices, gpu_available
    from bitnet_core.readiness import preflight

_LAZY = {
    "devices": "bitnet_core.hal.selection",
    "gpu_available": "bitnet_core.hal.selection",
    "preflight": "bitnet_core.readiness",
}
"""Public names and their modules, imported on first use so that `import bitnet_core` stays light."""

__all__ = ["devices", "gpu_available", "preflight"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'bitnet_core' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
