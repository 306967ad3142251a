"""Loading the driver, and what each GPU is."""

from __future__ import annotations

from functools import cache
from typing import Any

from bitnet_core.errors import BackendUnavailableError
from bitnet_core.hal import DeviceInfo, DeviceType

from bitnet_cuda.errors import check

FLOOR = (7, 5)
"""Lowest compute capability: what CUDA 13 still compiles for."""

OPTIONAL = frozenset({"top_k", "rope_attention"})
"""Optional kernels that every GPU runs."""
TENSOR_CORE_KERNELS = frozenset({"norm_matmul", "norm_matmul_glu"})
"""Optional kernels from compute capability 8.0 on."""

_ATTRIBUTES = {
    "multiprocessor_count": "MULTIPROCESSOR_COUNT",
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK",
    "max_registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "warp_size": "WARP_SIZE",
    "max_grid_x": "MAX_GRID_DIM_X",
    "clock_khz": "CLOCK_RATE",
    "memory_clock_khz": "MEMORY_CLOCK_RATE",
    "memory_bus_bits": "GLOBAL_MEMORY_BUS_WIDTH",
    "l2_cache_bytes": "L2_CACHE_SIZE",
    "ecc": "ECC_ENABLED",
    "integrated": "INTEGRATED",
    "unified_addressing": "UNIFIED_ADDRESSING",
    "concurrent_kernels": "CONCURRENT_KERNELS",
}


@cache
def driver() -> Any:
    """cuda.bindings' driver module, initialised. BackendUnavailableError if there is no driver."""
    try:
        from cuda.bindings import driver as module  # type: ignore[import-untyped]  # no types
    except ImportError as exc:
        raise BackendUnavailableError(
            f"cuda-bindings cannot be imported: {exc}",
            backend="cuda",
            operation="load",
            hint="pip install --force-reinstall bitnet-cuda",
        ) from exc
    try:
        result = module.cuInit(0)
    except RuntimeError as exc:  # DynamicLibNotFoundError, not a status
        raise BackendUnavailableError(
            "the NVIDIA driver's libcuda is not installed",
            backend="cuda",
            operation="load",
            hint="Install the NVIDIA driver (release 580 or later)",
        ) from exc
    check(result, "initialise the driver")
    return module


def _attribute(device: Any, name: str) -> int:
    code = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver().cuDeviceGetAttribute(code, device), "query")[0])


def compute_capability(device: Any) -> tuple[int, int]:
    """(major, minor) of a CUdevice."""
    return _attribute(device, "COMPUTE_CAPABILITY_MAJOR"), _attribute(device, "COMPUTE_CAPABILITY_MINOR")


def has_memory_pool(device: Any) -> bool:
    """Whether memory can come from a pool of the driver (not on every virtual GPU)."""
    return bool(_attribute(device, "MEMORY_POOLS_SUPPORTED"))


def _info(ordinal: int) -> DeviceInfo:
    api = driver()
    device = check(api.cuDeviceGet(ordinal), "query")[0]
    name = check(api.cuDeviceGetName(128, device), "query")[0].split(b"\0")[0].decode(errors="replace")
    total = int(check(api.cuDeviceTotalMem(device), "query")[0])
    version = int(check(api.cuDriverGetVersion(), "query")[0])
    pci = check(api.cuDeviceGetPCIBusId(16, device), "query")[0].split(b"\0")[0].decode(errors="replace")
    major, minor = compute_capability(device)
    extra: dict[str, str | int | float | bool] = {
        "device_id": ordinal,
        "compute_capability": f"{major}.{minor}",
        "total_memory": total,
        "supports_fp16": True,
        "supports_bf16": major >= 8,
        "tensor_core_int8": major >= 8,
    }
    extra |= {key: _attribute(device, attribute) for key, attribute in _ATTRIBUTES.items()}
    return DeviceInfo(
        backend="cuda",
        index=ordinal,
        name=name,
        type=DeviceType.INTEGRATED if extra["integrated"] else DeviceType.GPU,
        vendor="NVIDIA",
        driver=f"CUDA {version // 1000}.{version % 1000 // 10}",
        total_memory=total,
        max_allocation=total,
        max_binding=total,
        alignment=256,
        physical_id=pci.lower(),
        kernels=OPTIONAL | (TENSOR_CORE_KERNELS if major >= 8 else frozenset()),
        features=frozenset({"timings"}),
        extra=extra,
    )


def device_infos() -> list[DeviceInfo]:
    """All GPUs at or above the floor; BackendUnavailableError if there is none."""
    count = int(check(driver().cuDeviceGetCount(), "list devices")[0])
    infos = [_info(ordinal) for ordinal in range(count)]
    fit = [info for info in infos if _capability(info) >= FLOOR]
    if infos and not fit:
        raise BackendUnavailableError(
            f"{infos[0].name} has compute capability {infos[0].extra['compute_capability']}, 7.5 is needed",
            backend="cuda",
            operation="list devices",
            hint="Use bitnet-vulkan or bitnet-opencl on this GPU",
        )
    if not fit:
        raise BackendUnavailableError(
            "the driver shows no GPU",
            backend="cuda",
            operation="list devices",
            hint="Check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        )
    return fit


def _capability(info: DeviceInfo) -> tuple[int, int]:
    major, minor = str(info.extra["compute_capability"]).split(".")
    return int(major), int(minor)
