"""What each GPU is."""

from __future__ import annotations

from typing import Any

from bitnet_hal.kernels.catalogue import DELTA_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.plugin import FEW_ROWS, DeviceInfo, DeviceType, filter_devices, table

from bitnet_cuda.driver import driver, unavailable, version_text
from bitnet_cuda.errors import check

FLOOR = (7, 5)  # lowest compute capability: what CUDA 13 still compiles for
OPTIONAL = (
    DELTA_KERNELS
    | ROTATED_KERNELS
    | {  # every GPU
        *("top_k", "rope_attention", "pack_head", "approx_logits", "refine_logits")
    }
)
TENSOR_CORE_KERNELS = frozenset({"norm_matmul", "norm_matmul_glu", "matmul_ternary_glu"})  # from 8.0 on
_ATTRIBUTES = table(__file__, "attributes.toml")


def attribute(device: Any, name: str) -> int:
    """CU_DEVICE_ATTRIBUTE_<name> of a CUdevice."""
    code = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver().cuDeviceGetAttribute(code, device), "query")[0])


def compute_capability(device: Any) -> tuple[int, int]:
    """(major, minor) of a CUdevice."""
    return attribute(device, "COMPUTE_CAPABILITY_MAJOR"), attribute(device, "COMPUTE_CAPABILITY_MINOR")


def uuid(device: Any) -> str:
    """As nvidia-smi writes it."""
    code = bytes(check(driver().cuDeviceGetUuid(device), "query")[0].bytes)[:16].hex()
    return "GPU-" + "-".join((code[:8], code[8:12], code[12:16], code[16:20], code[20:]))


def _text(result: tuple[Any, ...]) -> str:
    return str(check(result, "query")[0].split(b"\0")[0].decode(errors="replace"))


def _info(ordinal: int, device: Any, capability: tuple[int, int]) -> DeviceInfo:
    api = driver()
    extra: dict[str, str | int | float | bool] = {key: attribute(device, name) for key, name in _ATTRIBUTES.items()}
    extra["total_memory"] = total = int(check(api.cuDeviceTotalMem(device), "query")[0])
    extra |= {"device_id": ordinal, "compute_capability": "{}.{}".format(*capability), "uuid": uuid(device)}
    extra |= {"supports_fp16": True} | dict.fromkeys(("supports_bf16", "tensor_core_int8"), capability >= (8, 0))
    x, y, z = (attribute(device, f"MAX_GRID_DIM_{axis}") for axis in "XYZ")
    return DeviceInfo(
        backend="cuda",
        index=ordinal,
        name=_text(api.cuDeviceGetName(128, device)),
        type=DeviceType.INTEGRATED if extra["integrated"] else DeviceType.GPU,
        vendor="NVIDIA",
        driver=f"CUDA {version_text(int(check(api.cuDriverGetVersion(), 'query')[0]))}",
        total_memory=total,
        max_allocation=total,
        max_binding=total,
        max_grid=(x, y, z),
        alignment=256,
        physical_id=_text(api.cuDeviceGetPCIBusId(16, device)).lower(),
        kernels=OPTIONAL | (TENSOR_CORE_KERNELS if capability >= (8, 0) else frozenset()),
        features=frozenset({"timings", "async-readback", "lm-head-int8"}),
        batch_invariant_rows=dict.fromkeys(UNFUSED_KERNELS, FEW_ROWS),
        extra=extra,
    )


def device_infos() -> list[DeviceInfo]:
    """All GPUs at or above the floor, with the driver's ordinals; BackendUnavailableError if there is none."""

    def described(ordinal: int, _: int) -> DeviceInfo | str:
        device = check(driver().cuDeviceGet(ordinal), "query")[0]
        if (capability := compute_capability(device)) >= FLOOR:
            return _info(ordinal, device, capability)
        name = _text(driver().cuDeviceGetName(128, device))
        return "{} has compute capability {}.{}, 7.5 is needed".format(name, *capability)

    infos, old = filter_devices(range(int(check(driver().cuDeviceGetCount(), "list devices")[0])), "cuda", described)
    if infos:
        return infos
    hint = "Use bitnet-vulkan or bitnet-opencl on this GPU" if old else "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    raise unavailable("; ".join(old) or "the driver shows no GPU", hint)
