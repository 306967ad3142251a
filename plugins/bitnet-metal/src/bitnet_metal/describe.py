"""Enumeration of Apple GPUs."""

from __future__ import annotations

import platform
from types import MappingProxyType

from bitnet_hal.kernels.catalogue import DELTA_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, EnumeratedDevice, TransferMode, filter_devices

from bitnet_metal.driver import BACKEND, Handle, module, unavailable

FAMILIES = (10, 9, 8, 7)
"""The supported GPU families, newest first.

simd_sum and simdgroup_matrix exist from 7 (M1) on; a later GPU counts as the newest.
"""
OPTIONAL = DELTA_KERNELS | ROTATED_KERNELS | {"top_k", "norm_matmul", "norm_matmul_glu", "rope_attention"}


def usable() -> list[EnumeratedDevice]:
    """Return the GPUs that can be used, with their index among all GPUs.

    Raises BackendUnavailableError if there is none.
    """

    def described(device: Handle, index: int) -> EnumeratedDevice | str:
        supported = (n for n in FAMILIES if device.supportsFamily_(getattr(module(), f"MTLGPUFamilyApple{n}")))
        family = next(supported, 0)
        if family and device.hasUnifiedMemory():
            return EnumeratedDevice(device, _describe(device, index, family))
        return f"{device.name()} is not a GPU of Apple silicon"

    found, _ = filter_devices(module().MTLCopyAllDevices() or (), BACKEND, described)
    if found:
        return found
    hint = "Intel Macs, their AMD GPUs too: use bitnet-webgpu. Under Rosetta: install Python for arm64"
    raise unavailable("Metal shows no GPU of Apple silicon (M1 or later)", hint)


def _describe(device: Handle, index: int, family: int) -> DeviceInfo:
    return DeviceInfo(
        backend=BACKEND,
        index=index,
        name=str(device.name()),
        type=DeviceType.INTEGRATED,
        vendor="Apple",
        driver=f"Metal, macOS {platform.mac_ver()[0]}",
        total_memory=int(device.recommendedMaxWorkingSetSize()),
        max_allocation=int(device.maxBufferLength()),
        max_binding=int(device.maxBufferLength()),
        alignment=16,  # kernels read 16 bytes at a time
        transfer=TransferMode.UNIFIED,
        physical_id=f"{int(device.registryID()):016x}",
        kernels=OPTIONAL,
        features=frozenset({"timings", "tunings", "replay-many"}),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        extra=MappingProxyType({"family": f"apple{family}"}),
    )
