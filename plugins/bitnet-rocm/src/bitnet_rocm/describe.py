"""Enumeration of AMD GPUs through the HIP runtime."""

from __future__ import annotations

from typing import Any

from bitnet_hal.kernels.catalogue import DELTA_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, TransferMode, filter_devices, pci_address

from bitnet_rocm.driver import driver, unavailable
from bitnet_rocm.errors import check

OPTIONAL = (
    DELTA_KERNELS
    | ROTATED_KERNELS
    | {"top_k", "rope_attention", "norm_matmul", "norm_matmul_glu"}
    | {"pack_head", "approx_logits", "refine_logits", "repack_q2_0"}
)
"""Optional kernels that every GPU runs."""

_PROPERTIES = {
    "multiprocessor_count": "multiProcessorCount",
    "max_threads_per_block": "maxThreadsPerBlock",
    "max_shared_memory_per_block": "sharedMemPerBlock",
    "max_registers_per_block": "regsPerBlock",
    "warp_size": "warpSize",
    "clock_khz": "clockRate",
    "memory_clock_khz": "memoryClockRate",
    "memory_bus_bits": "memoryBusWidth",
    "l2_cache_bytes": "l2CacheSize",
    "ecc": "ECCEnabled",
    "integrated": "integrated",
    "unified_addressing": "unifiedAddressing",
    "concurrent_kernels": "concurrentKernels",
}


def text(value: Any) -> str:
    """Return a C string of hip-python up to its NUL."""
    raw = value if isinstance(value, bytes) else str(value).encode()
    return raw.split(b"\0")[0].decode(errors="replace")


def _info(ordinal: int) -> DeviceInfo:
    properties = check(driver().hipGetDeviceProperties(ordinal), "query")[0]
    version = int(check(driver().hipRuntimeGetVersion(), "query")[0])
    architecture = text(properties.gcnArchName)
    total = int(properties.totalGlobalMem)
    extra: dict[str, str | int | float | bool] = {
        "device_id": ordinal,
        "architecture": architecture,
        "runtime_version": version,
        "total_memory": total,
        "supports_fp16": True,
    }
    extra |= {key: int(getattr(properties, name)) for key, name in _PROPERTIES.items()}
    address = (properties.pciDomainID, properties.pciBusID, properties.pciDeviceID)
    grid = tuple(int(size) for size in properties.maxGridSize)
    return DeviceInfo(
        backend="rocm",
        index=ordinal,
        name=text(properties.name) or f"AMD {architecture}",
        type=DeviceType.INTEGRATED if extra["integrated"] else DeviceType.GPU,
        vendor="AMD",
        driver=f"HIP {version // 10_000_000}.{version // 100_000 % 100}",
        total_memory=total,
        max_allocation=total,
        max_binding=total,
        max_grid=(grid[0], grid[1], grid[2]),
        alignment=256,
        transfer=TransferMode.UNIFIED if extra["integrated"] else TransferMode.EXPLICIT_COPY,
        physical_id=pci_address(*map(int, address)),
        kernels=OPTIONAL,
        features=frozenset({"timings", "tunings", "replay-many", "sensors"}),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        extra=extra,
    )


def device_infos() -> list[DeviceInfo]:
    """Return the DeviceInfo of all GPUs that can be used. Raises BackendUnavailableError if there is none."""

    def described(ordinal: int, _: int) -> DeviceInfo | str:
        info = _info(ordinal)
        wave = info.extra["warp_size"]
        return info if int(wave) in (32, 64) else f"rocm:{ordinal} has waves of {wave} threads, 32 or 64 are needed"

    count = int(check(driver().hipGetDeviceCount(), "list devices")[0])
    infos, _ = filter_devices(range(count), "rocm", described)
    if not infos:
        raise unavailable("the HIP runtime shows no GPU", "Check `rocminfo` and HIP_VISIBLE_DEVICES")
    return infos
