"""Descriptions of the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bitnet_hal.kernels.catalogue import DELTA_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, filter_devices, table

from bitnet_cuda.driver import driver, unavailable, version_text
from bitnet_cuda.errors import check
from bitnet_cuda.limits import BATCH_ROWS

FLOOR = (7, 5)
"""The lowest compute capability for which CUDA 13 compiles."""
WARPGROUP_MMA = (9, 0)
"""The compute capability whose architecture-specific instructions include wgmma."""
OPTIONAL = (
    DELTA_KERNELS
    | ROTATED_KERNELS
    | {"top_k", "rope_attention", "pack_head", "approx_logits", "refine_logits", "repack_q2_0"}
)
"""The optional kernels that every GPU offers."""
TENSOR_CORE_KERNELS = frozenset({"norm_matmul", "norm_matmul_glu", "matmul_ternary_glu", "rope_attention_mixed"})
"""The further kernels from compute capability 8.0."""
INVARIANT_FUSED = frozenset({"matmul_ternary_glu", "rope_attention_mixed"})
"""The other fused kernels whose rows do not depend on the number of rows."""
FEATURES = frozenset(
    {
        "timings",
        "tunings",
        "invariant-tunings",
        "compile-ahead",
        "async-readback",
        "replay-many",
        "peer-copy",
        "lm-head-int8",
        "sensors",
        "kernel-resources",
    }
)
_ATTRIBUTES = table(__file__, "attributes.toml")


def attribute(device: Any, name: str) -> int:
    """Return CU_DEVICE_ATTRIBUTE_<name> of a CUdevice."""
    code = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver().cuDeviceGetAttribute(code, device), "query")[0])


def compute_capability(device: Any) -> tuple[int, int]:
    """Return the compute capability (major, minor) of a CUdevice."""
    return attribute(device, "COMPUTE_CAPABILITY_MAJOR"), attribute(device, "COMPUTE_CAPABILITY_MINOR")


def uuid(device: Any) -> str:
    """Return the UUID of a CUdevice in the notation of nvidia-smi."""
    code = bytes(check(driver().cuDeviceGetUuid(device), "query")[0].bytes)[:16].hex()
    return "GPU-" + "-".join((code[:8], code[8:12], code[12:16], code[16:20], code[20:]))


def _text(result: tuple[Any, ...]) -> str:
    return str(check(result, "query")[0].split(b"\0")[0].decode(errors="replace"))


def _info(ordinal: int, device: Any, capability: tuple[int, int]) -> DeviceInfo:
    api = driver()
    extra: dict[str, str | int | float | bool] = {key: attribute(device, name) for key, name in _ATTRIBUTES.items()}
    total_memory = int(check(api.cuDeviceTotalMem(device), "query")[0])
    cuda_version = int(check(api.cuDriverGetVersion(), "query")[0])
    has_tensor_cores = capability >= (8, 0)
    major, minor = capability
    extra["total_memory"] = total_memory
    extra["device_id"] = ordinal
    extra["compute_capability"] = f"{major}.{minor}"
    extra["uuid"] = uuid(device)
    extra["supports_fp16"] = True
    extra["supports_bf16"] = has_tensor_cores
    extra["tensor_core_int8"] = has_tensor_cores
    grid_x = attribute(device, "MAX_GRID_DIM_X")
    grid_y = attribute(device, "MAX_GRID_DIM_Y")
    grid_z = attribute(device, "MAX_GRID_DIM_Z")
    return DeviceInfo(
        backend="cuda",
        index=ordinal,
        name=_text(api.cuDeviceGetName(128, device)),
        type=DeviceType.INTEGRATED if extra["integrated"] else DeviceType.GPU,
        vendor="NVIDIA",
        driver=f"CUDA {version_text(cuda_version)}",
        total_memory=total_memory,
        max_allocation=total_memory,
        max_binding=total_memory,
        max_grid=(grid_x, grid_y, grid_z),
        alignment=256,
        physical_id=_text(api.cuDeviceGetPCIBusId(16, device)).lower(),
        kernels=OPTIONAL | (TENSOR_CORE_KERNELS if has_tensor_cores else frozenset()),
        features=FEATURES | ({"refined-as-dense"} if capability == WARPGROUP_MMA else frozenset()),
        batch_invariant_rows=dict.fromkeys(
            UNFUSED_KERNELS | ROTATED_KERNELS | INVARIANT_FUSED, BATCH_ROWS if capability == WARPGROUP_MMA else FEW_ROWS
        ),
        extra=extra,
    )


def _peers(info: DeviceInfo, infos: Sequence[DeviceInfo]) -> frozenset[str]:
    """Return the physical ids of the other GPUs whose memory a GPU can read."""
    api = driver()
    own = check(api.cuDeviceGet(info.index), "query")[0]
    found = []
    for other in infos:
        if other is not info:
            device = check(api.cuDeviceGet(other.index), "query")[0]
            if int(check(api.cuDeviceCanAccessPeer(own, device), "query")[0]):
                found.append(other.physical_id)
    return frozenset(found)


def device_infos() -> list[DeviceInfo]:
    """Return the GPUs of compute capability FLOOR or later, with the driver's ordinals.

    Raises BackendUnavailableError if there is none.
    """

    def described(ordinal: int, _: int) -> DeviceInfo | str:
        device = check(driver().cuDeviceGet(ordinal), "query")[0]
        capability = compute_capability(device)
        if capability >= FLOOR:
            return _info(ordinal, device, capability)
        name = _text(driver().cuDeviceGetName(128, device))
        major, minor = capability
        return f"{name} has compute capability {major}.{minor}, 7.5 is needed"

    count = int(check(driver().cuDeviceGetCount(), "list devices")[0])
    infos, old = filter_devices(range(count), "cuda", described)
    if infos:
        return [replace(info, peers=_peers(info, infos)) for info in infos]
    hint = "Use bitnet-vulkan or bitnet-opencl on this GPU" if old else "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    raise unavailable("; ".join(old) or "the driver shows no GPU", hint)
