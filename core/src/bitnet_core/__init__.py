"""1.58-bit language models on any vendor's hardware."""

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes ten times as long as importing this module
if TYPE_CHECKING:
    from typing import Any

    from bitnet_hal.discovery.probe import probe
    from bitnet_hal.discovery.selection import devices, gpu_available

    from bitnet_core.api import Generation, GenerationStream, Model, TextChunk, load
    from bitnet_core.doctor.findings import preflight
    from bitnet_core.operations import Provider, provider
    from bitnet_core.options.engine import MemoryPoolConfig

_LAZY = {
    "Generation": "bitnet_core.api",
    "GenerationStream": "bitnet_core.api",
    "MemoryPoolConfig": "bitnet_core.options.engine",
    "Model": "bitnet_core.api",
    "TextChunk": "bitnet_core.api",
    "Provider": "bitnet_core.operations",
    "devices": "bitnet_hal.discovery.selection",
    "gpu_available": "bitnet_hal.discovery.selection",
    "load": "bitnet_core.api",
    "preflight": "bitnet_core.doctor.findings",
    "probe": "bitnet_hal.discovery.probe",
    "provider": "bitnet_core.operations",
}
"""Public names and their modules, imported on first use so that `import bitnet_core` stays light."""

__all__ = [
    "Generation",
    "GenerationStream",
    "MemoryPoolConfig",
    "Model",
    "Provider",
    "TextChunk",
    "devices",
    "gpu_available",
    "load",
    "preflight",
    "probe",
    "provider",
]


def __getattr__(name: str) -> "Any":
    if name not in _LAZY:
        raise AttributeError(f"module 'bitnet_core' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
