"""Which source, workgroup size and tile serves a launch, by kind of device."""

from __future__ import annotations

from collections.abc import Mapping

from bitnet_core.hal import DeviceType
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan.instance import PhysicalDevice
from bitnet_vulkan.pipelines import Source

FEW_ROWS = 8
"""Rows up to which weights are streamed past registers; more go through tiles."""
ROW_GROUP = 256
"""Invocations that normalize a row, alone or in front of a matrix product: the same in both, so that sums are too."""


def choose(
    physical: PhysicalDevice, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
) -> dict[str, int]:
    """Tuning constants of one launch. Software devices like small groups: each invocation is a loop there."""
    software = physical.info.type is DeviceType.SOFTWARE
    rows = int(params["rows"])
    if spec.name == "matmul_ternary":
        return _ternary(physical, software, params)
    if spec.name in ("norm_matmul", "norm_matmul_glu"):
        chosen = _few(physical, software, 1, int(params["outs"]), int(params["width"]))
        return {**chosen, "SOURCE": Source.PLAIN}
    if spec.name == "matmul_dense" and physical.features.subgroups and constants["DTYPE"] == 1 and not software:
        width = int(params["width"])
        if width % 8 == 0 and width <= 8192:
            return _dense_few(physical, rows, width)
    if spec.name in ("matmul_ternary_block", "matmul_dense"):
        group, tile_n = (32, 4) if software else (128, 8)
        return {"GROUP": group, "TILE_N": tile_n, "TILE_T": _tile(rows, 2 if software else 8)}
    if spec.name == "attention":
        return _attention(physical, software, constants, params)
    if spec.name in ("rms_norm", "rms_norm_quantize", "glu_norm_quantize"):
        width = int(params.get("stride", params["width"]))
        return {"GROUP": 128 if software else _row_group(width), "WIDTH": width}
    if spec.name == "embed_rows":
        return {"GROUP": 64, "TILE_N": 512 if software else 128}
    if spec.name == "rope_store_kv":
        dim = int(params["head_dim"])
        if rows > FEW_ROWS and constants["KV"] < 2 and dim % 4 == 0:
            return {"SOURCE": Source.TILED, "GROUP": 16 if software else 64, "TILE_N": 5, "DIM": dim}
        return {"GROUP": 16 if software else 64}
    if spec.name == "argmax_advance" and physical.features.subgroups:
        group, batch = (32, 1) if software else (256, 16)
        splits = min(32, ceil_div(int(params["vocab"]), group * batch))
        return {"SOURCE": Source.SPLIT, "GROUP": group, "BATCH": batch, "SPLITS": splits}
    if spec.name == "argmax_advance":
        return {"GROUP": 32, "BATCH": 1} if software else {"GROUP": 1024, "BATCH": 16}
    if spec.name == "top_k":
        return {"GROUP": 32 if software else 1024}
    return {"GROUP": 32 if software else 256}


def _tile(rows: int, largest: int) -> int:
    return next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == largest)


def _row_group(width: int) -> int:
    return ROW_GROUP if width <= 16384 else 1024


def _ternary(physical: PhysicalDevice, software: bool, params: Mapping[str, int | float]) -> dict[str, int]:
    rows, outs, width = (int(params[name]) for name in ("rows", "outs", "width"))
    if rows > FEW_ROWS:
        if physical.features.matrix:
            return _matrix(rows, outs)
        return {"SOURCE": Source.TILED, "GROUP": 256, "TILE_N": 64, "TILE_T": 64}
    if not physical.features.subgroups:
        group, tile_n = (32, 4) if software else (128, 8)
        return {"GROUP": group, "TILE_N": tile_n, "TILE_T": _tile(rows, 2 if software else 8)}
    return _few(physical, software, rows, outs, width)


def _few(physical: PhysicalDevice, software: bool, rows: int, outs: int, width: int) -> dict[str, int]:
    lanes = min(16, physical.features.subgroups)
    group = 128 if software else _row_group(width)
    rows_per = 1 if width > 8192 else 4 if outs >= 8192 else 2
    if rows > 2 and not software:  # activations are most of the traffic: wide lanes, two rows for each load of them
        lanes, group, rows_per = physical.features.subgroups, 128, 2
    return {
        "SOURCE": Source.FEW,
        "GROUP": group,
        "TILE_N": group // lanes * rows_per,
        "TILE_T": _tile(rows, 2 if software else 8),
        "WIDTH": width,
        "LANES": lanes,
    }


def _matrix(rows: int, outs: int) -> dict[str, int]:
    """Tiles as measured on an H200: the fewer there are, the smaller they must be to reach all multiprocessors."""
    tiles = ceil_div(rows, 128) * ceil_div(outs, 128)
    tile_n, tile_t, group = (128, 64, 128) if tiles >= 200 else (128, 128, 256) if tiles >= 100 else (64, 64, 128)
    return {"SOURCE": Source.COOP, "GROUP": group, "TILE_N": tile_n, "TILE_T": tile_t, "WAVE_T": 32}


def _dense_few(physical: PhysicalDevice, rows: int, width: int) -> dict[str, int]:
    lanes, group, rows_per = physical.features.subgroups, 128, 8
    tile_n = group // lanes * rows_per
    return {
        "SOURCE": Source.FEW,
        "GROUP": group,
        "TILE_N": tile_n,
        "TILE_T": _tile(rows, 8),
        "WIDTH": width,
        "LANES": lanes,
        "BATCH": 2 if rows == 1 else 4,
    }


MAX_GROUP_HEADS = 8
"""Query heads of one key/value head that the split kernel keeps in registers."""


def _attention(
    physical: PhysicalDevice, software: bool, constants: Mapping[str, int], params: Mapping[str, int | float]
) -> dict[str, int]:
    rows, dim = int(params["rows"]), int(params["head_dim"])
    heads = int(params["n_heads"]) // int(params["n_kv_heads"])
    if rows > FEW_ROWS and physical.features.half_matrix and constants["KV"] == 1 and dim in (64, 128):
        tile_n = 2 if heads % 2 == 0 else 1
        return {"SOURCE": Source.COOP, "GROUP": 64, "TILE_N": tile_n, "TILE_T": 32 // tile_n, "DIM": dim}
    if rows > FEW_ROWS or not physical.features.subgroups or dim % 8 or dim > 256 or heads > MAX_GROUP_HEADS:
        return {"GROUP": 64, "TILE_N": 1, "TILE_T": 1}
    octets = dim // 8
    lanes = next(n for n in (32, 16, 8, 4, 2, 1) if n <= physical.features.subgroups and octets % n == 0)
    positions = 64 * int(params["max_blocks"])
    return {
        "SOURCE": Source.SPLIT,
        "GROUP": heads * physical.features.subgroups,
        "TILE_N": heads,
        "TILE_T": 1,
        "HEADS": heads,
        "DIM": dim,
        "LANES": lanes,
        "SPLITS": min(16, ceil_div(positions, 64)),
        "BATCH": 1 if software else 4,
    }


def layer(physical: PhysicalDevice) -> dict[str, int]:
    """Constants of decoder_layer_resident: a workgroup for each multiprocessor."""
    wave = physical.features.subgroups
    return {
        "GROUP": 16 * wave if physical.info.type is DeviceType.SOFTWARE else 512,
        "GROUPS": physical.features.resident,
        "LANES": min(16, wave),
        "TILE_N": 2,
        "BATCH": 2,
    }
