"""Machines that nobody has at hand, for tests of choice and of memory: descriptions of their devices, no stand-ins.

Sizes and compute capabilities are those that the design documents name; the floor of bitnet-cuda is 7.5.
"""

from __future__ import annotations

from bitnet_hal.device import DeviceInfo, DeviceType, TransferMode

_GIB = 1 << 30


def _nvidia(gib: int, capability: str, index: int = 0) -> DeviceInfo:
    return DeviceInfo(
        "cuda",
        index,
        f"NVIDIA GPU of {gib} GiB",
        DeviceType.GPU,
        vendor="NVIDIA",
        total_memory=gib * _GIB,
        max_allocation=gib * _GIB,
        max_binding=gib * _GIB,
        physical_id=f"0000:{index + 1:02x}:00.0",
        extra={"compute_capability": capability},
    )


def _cpu(gib: int) -> DeviceInfo:
    total, unified = gib * _GIB, TransferMode.UNIFIED
    return DeviceInfo("cpu", 0, "CPU", DeviceType.CPU, total_memory=total, transfer=unified)


def _integrated(backend: str, gib: int) -> DeviceInfo:
    total, unified = gib * _GIB, TransferMode.UNIFIED
    place = "0000:00:02.0"
    return DeviceInfo(
        backend, 0, "iGPU", DeviceType.INTEGRATED, total_memory=total, transfer=unified, physical_id=place
    )


SCENARIOS: dict[str, tuple[DeviceInfo, ...]] = {
    "no-gpu": (_cpu(16),),
    "low-memory": (_cpu(8), _nvidia(4, "7.5")),
    "mid-8": (_cpu(16), _nvidia(8, "8.6")),
    "mid-16": (_cpu(32), _nvidia(16, "8.9")),
    "high-80": (_cpu(128), _nvidia(80, "8.0")),
    "high-141": (_cpu(256), _nvidia(141, "9.0")),
    "multi-gpu": (_cpu(128), *(_nvidia(24, "8.9", index) for index in range(4))),
    "integrated": (_cpu(16), _integrated("level-zero", 16), _integrated("vulkan", 16)),
}
"""By name; every one has a CPU."""
