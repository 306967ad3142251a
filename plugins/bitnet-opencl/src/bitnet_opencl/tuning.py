"""Tuning constants per class of device: which source a launch uses, how many work-items, which tiles.

Beside the constants that a kernel's grid depends on, a source may need: WG (work-items of a group), VARIANT (index into
VARIANTS), LANES (work-items that share a row), ROWS and COLUMNS (register tile), DEPTH (loads on their way together),
SHARE (elements of a row for each work-item), WIDTH (of a row), ALIGNED; SPREAD, OWNED, CHUNK, KEYS, HEADS and HEAD_DIM
(attention); SPLITS (groups that share a group's work), GROUPS (most sets of these), PARTS (bytes that they hand on);
MEMBERS (groups of a launch that meet).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bitnet_core.errors import UnsupportedError
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.spec import KernelSpec

VARIANTS = ("", "_tiled", "_cpu", "_mma", "_split")
"""Suffix of the source file that constants["VARIANT"] chooses."""
MOST_SPLITS = 32
"""Parts of the positions that a row's attention is split into."""
DECODE_ROWS = 8
"""Up to this many rows the weights are streamed; above, tiles in local memory pay."""

Params = Mapping[str, int | float]


class DeviceClass(Enum):
    """Devices that want different constants."""

    CPU = "cpu"
    INTEGRATED = "integrated"
    DISCRETE = "discrete"


@dataclass(frozen=True, slots=True)
class Profile:
    """What tuning knows about a device.

    lanes: work-items that surely sit in one subgroup, side by side. units: compute units. ptx: an NVIDIA GPU of compute
    capability 8.0 or later, whose instructions the sources may name. members: groups that run at the same time, so that
    they may wait for each other; 0 where that is not known.
    """

    device_class: DeviceClass
    max_group: int = 256
    lanes: int = 32
    units: int = 1
    ptx: bool = False
    members: int = 0

    def group(self, wanted: int) -> int:
        """`wanted` work-items, or as many as a group may have."""
        return min(wanted, self.max_group)


def power_of_two(n: int, largest: int) -> int:
    """The smallest power of two that is at least n, but no more than `largest`."""
    return min(1 << max(0, n - 1).bit_length(), largest)


def tune(profile: Profile, spec: KernelSpec, params: Params) -> dict[str, int]:
    """All constants beside the semantic ones for one launch."""
    choose = _CPU if profile.device_class is DeviceClass.CPU else _GPU
    return {"VARIANT": 0, **choose.get(spec.name, choose[""])(profile, params)}


def known_width(params: Params) -> dict[str, int]:
    """The width as a constant, where that is worth a program for each width."""
    width = int(params["width"])
    return {"WIDTH": width} if width >= 1024 else {}


def _gpu_rows(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": profile.group(512)}


def _gpu_quantize(profile: Profile, params: Params) -> dict[str, int]:
    group, width = profile.group(512), int(params["width"])
    share = ceil_div(width, group)
    return {"WG": group, "SHARE": share if width >= 1024 else power_of_two(share, 1024)}


def _gpu_embed(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": profile.group(256), "TILE_N": 1024}


def _gpu_vocabulary(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": profile.group(1024)}


def _gpu_argmax(profile: Profile, params: Params) -> dict[str, int]:
    rows, splits = int(params["rows"]), ceil_div(int(params["vocab"]), 2048)
    if not profile.ptx or splits == 1:
        return _gpu_vocabulary(profile, params)
    splits = min(splits, 256)
    return {"VARIANT": 4, "WG": 256, "SPLITS": splits, "PARTS": 4 * rows * (1 + 2 * splits)}


def _gpu_heads(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": profile.group(64)}


def _gpu_ternary(profile: Profile, params: Params) -> dict[str, int]:
    rows, outs, width = int(params["rows"]), int(params["outs"]), int(params["width"])
    if rows > DECODE_ROWS and profile.ptx:
        tile_n = 64 if ceil_div(outs, 128) * ceil_div(rows, 64) < 2 * profile.units else 128
        return {"VARIANT": 3, "WG": 128, "TILE_N": tile_n, "TILE_T": 64}
    if rows > DECODE_ROWS and profile.max_group >= 256:
        return {"VARIANT": 1, "WG": 256, "TILE_N": 64, "TILE_T": 64}
    group, lanes, per_set, depth = profile.group(128), min(8, profile.lanes), 1, 4
    if profile.ptx:  # enough loads on their way without too many groups
        lanes, per_set, depth = (16, 2, 3) if outs > 8192 else (32, 2, 4)
    tile = {"TILE_N": group // lanes * per_set, "TILE_T": power_of_two(rows, DECODE_ROWS)}
    depth = min(depth, ceil_div(width // 64, lanes)) if width >= 1024 else 1
    return {"WG": group, "LANES": lanes, "DEPTH": depth, **known_width(params), **tile}


def _gpu_block(profile: Profile, params: Params) -> dict[str, int]:
    group, lanes = profile.group(128), min(8, profile.lanes)
    return {"WG": group, "LANES": lanes, "TILE_N": group // lanes, "TILE_T": 1}


def _gpu_dense(profile: Profile, params: Params) -> dict[str, int]:
    group, lanes, rows = profile.group(128), profile.lanes, 2
    tile = {"TILE_N": group // lanes * rows, "TILE_T": power_of_two(int(params["rows"]), 4)}
    return {"WG": group, "LANES": lanes, "ROWS": rows, **_aligned(params), **known_width(params), **tile}


def _aligned(params: Params) -> dict[str, int]:
    """Whether 8 elements of a table row start at a multiple of 16 bytes."""
    return {"ALIGNED": int(int(params["width"]) % 8 == 0)}


def _gpu_attention(profile: Profile, params: Params) -> dict[str, int]:
    head_dim = int(params["head_dim"])
    if ceil_div(head_dim, 8) <= profile.lanes:
        return {"VARIANT": 4, **_gpu_rope_attention(profile, params)}
    group = profile.group(256)
    spread = min(group, head_dim)
    return {
        "WG": group,
        "LANES": min(8, profile.lanes),
        "CHUNK": 256,
        "SPREAD": spread,
        "OWNED": ceil_div(head_dim, spread),
        "TILE_N": 1,
        "TILE_T": 1,
    }


def _gpu_rope_attention(profile: Profile, params: Params) -> dict[str, int]:
    n_heads, head_dim = int(params["n_heads"]), int(params["head_dim"])
    rows = 1 << (int(params["rows"]) - 1).bit_length()  # prompts of any length shall share few programs
    active = ceil_div(head_dim, 8)
    if active > profile.lanes:
        raise UnsupportedError(
            f"heads of {head_dim} elements are more than the {8 * profile.lanes} that rope_attention has room for",
            backend="opencl",
            operation="tuning",
        )
    lanes = power_of_two(active, profile.lanes)
    shared = n_heads // int(params["n_kv_heads"])
    heads = max(count for count in range(1, 5) if shared % count == 0)
    groups = rows * (n_heads // heads)
    splits = min(MOST_SPLITS, ceil_div(2 * profile.units, groups)) if profile.ptx else 1
    shared_out = {"SPLITS": 1, "GROUPS": 1, "PARTS": 0}
    if splits > 1:
        parts = 16 * (ceil_div(groups, 4) + groups * splits * heads * (2 * active + 1))
        shared_out = {"SPLITS": splits, "GROUPS": groups, "PARTS": parts}
    team = {"LANES": lanes, "HEAD_DIM": head_dim, "KEYS": 2, "HEADS": heads}
    return {"WG": profile.group(128), **team, **shared_out, "TILE_N": heads, "TILE_T": 1}


def _gpu_norm_matmul(profile: Profile, params: Params) -> dict[str, int]:
    """Enough groups for all compute units, but not many more, as each does the norm again."""
    width, outs, group = int(params["width"]), int(params["outs"]), profile.group(256)
    lanes = 16 if width <= 4096 else 32
    per_set = 2 if outs * lanes > 2 * profile.units * group else 1
    row = {"COLUMNS": int(params["columns"]), "WIDTH": width}
    return {"WG": group, "LANES": lanes, **row, "TILE_N": group // lanes * per_set, "TILE_T": 1}


def layer_constants(profile: Profile, shape: Mapping[str, int], heads: int) -> dict[str, int]:
    """Of decoder_layer: a group for each compute unit, `heads` heads at a time."""
    groups, members = shape["N_HEADS"] // heads, profile.members
    splits = max(1, members // groups)
    quads = ceil_div(groups, 4) + groups * splits * heads * (2 * ceil_div(shape["HEAD_DIM"], 8) + 1)
    return {"WG": 512 if profile.ptx else 32, "LANES": 16, "KEYS": 1, "MEMBERS": members, "PARTS": 2048 + 16 * quads}


_GPU = {
    "": _gpu_rows,
    "embed_rows": _gpu_embed,
    "rms_norm_quantize": _gpu_quantize,
    "glu_norm_quantize": _gpu_quantize,
    "argmax_advance": _gpu_argmax,
    "top_k": _gpu_vocabulary,
    "rope_store_kv": _gpu_heads,
    "matmul_ternary": _gpu_ternary,
    "matmul_ternary_block": _gpu_block,
    "matmul_dense": _gpu_dense,
    "attention": _gpu_attention,
    "rope_attention": _gpu_rope_attention,
    "norm_matmul": _gpu_norm_matmul,
    "norm_matmul_glu": _gpu_norm_matmul,
}


def _cpu_rows(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": profile.group(32)}


def _cpu_embed(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": profile.group(32), "TILE_N": 4096}


def _cpu_ternary(profile: Profile, params: Params) -> dict[str, int]:
    rows = int(params["rows"])
    columns = power_of_two(rows, 4)
    return {"VARIANT": 2, "WG": 1, "ROWS": 2, "COLUMNS": columns, "TILE_N": 32, "TILE_T": power_of_two(rows, 64)}


def _cpu_block(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": 1, "LANES": 1, "TILE_N": 8, "TILE_T": power_of_two(int(params["rows"]), 8)}


def _cpu_dense(profile: Profile, params: Params) -> dict[str, int]:
    tile_t = power_of_two(int(params["rows"]), 4)
    return {"WG": 1, "LANES": 1, "ROWS": 4, **_aligned(params), "TILE_N": 32, "TILE_T": tile_t}


def _cpu_attention(profile: Profile, params: Params) -> dict[str, int]:
    head_dim = int(params["head_dim"])
    if head_dim % 16 == 0:
        return {"VARIANT": 2, "WG": 1, "OWNED": head_dim // 16, "TILE_N": 1, "TILE_T": 1}
    group = profile.group(16)
    tile = {"SPREAD": group, "OWNED": ceil_div(head_dim, group), "TILE_N": 1, "TILE_T": 1}
    return {"WG": group, "LANES": 1, "CHUNK": 64, **tile}


def _cpu_one_item(profile: Profile, params: Params) -> dict[str, int]:
    return {"WG": 1}


_CPU = {
    "": _cpu_rows,
    "embed_rows": _cpu_embed,
    "rms_norm_quantize": _cpu_one_item,
    "glu_norm_quantize": _cpu_one_item,
    "rope_store_kv": _cpu_one_item,
    "matmul_ternary": _cpu_ternary,
    "matmul_ternary_block": _cpu_block,
    "matmul_dense": _cpu_dense,
    "attention": _cpu_attention,
}
