"""How each class of device wants each launch: which source, how many work-items, which tiles.

Private constants: GROUP (work-items of a group), LANES (work-items that share a row), ROWS and COLUMNS (register tile),
DEPTH (loads on their way together), SHARE (elements of a row for each work-item), WIDTH (of a row), ALIGNED; SPREAD,
OWNED, CHUNK, KEYS, HEADS and HEAD_DIM (attention); GROUPS (most sets of groups that share work).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal.device import Tuning
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.small_head import HEAD_GROUP
from bitnet_core.kernels.spec import KernelSpec

MOST_SPLITS = 32
"""Parts of the positions that a row's attention is split into."""
FEW_ROWS = 8
"""Up to this many rows the weights are streamed; above, tiles in local memory pay."""
JOINED_ROWS = 2
"""Up to this many rows a norm in every group costs less than a launch of its own."""
LOCAL_BYTES = 49152
"""Of local memory that a group of any NVIDIA GPU may have."""
MEETING_BYTES = 2048
"""Of decoder_layer's workspace, before what attention hands on (meeting.clh)."""

_SHARED_ROWS = ("matmul_ternary", "matmul_ternary_block", "matmul_dense")
"""Products whose rows are shared among lanes."""

Constants = Mapping[str, int]
Params = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Profile:
    """What tuning knows about a device.

    cpu: work-items of a group run one after the other. lanes: work-items that surely sit in one subgroup, side by side.
    units: compute units. nvidia: it takes NVIDIA's dialect. ptx: with the tensor cores of compute capability 8.0.
    members: groups that run at the same time, so that they may wait for each other; 0 where that is not known.
    """

    cpu: bool = False
    max_group: int = 256
    lanes: int = 32
    units: int = 1
    nvidia: bool = False
    ptx: bool = False
    members: int = 0

    def group(self, wanted: int) -> int:
        """`wanted` work-items, or as many as a group may have."""
        return min(wanted, self.max_group)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A launch to tune."""

    profile: Profile
    constants: Constants
    params: Params

    def __getitem__(self, name: str) -> int:
        return int(self.params[name])


def tune(profile: Profile, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
    """The tuning of one launch; UnsupportedError where an optional kernel does not serve it."""
    choose = (_CPU if profile.cpu else _GPU).get(spec.name)
    if choose is None:
        raise unsupported(spec.name, "this device")
    return choose(Wanted(profile, constants, params))


def offered(profile: Profile, spec: KernelSpec, constants: Constants, params: Params) -> list[Tuning]:
    """The tuning of one launch first, then others for products of few rows on a GPU that nobody measured: `bitnet tune`
    chooses among them. The more lanes share a row, the fewer rows a group has."""
    usual = tune(profile, spec, constants, params)
    lanes = usual.private.get("LANES", 0)
    if profile.cpu or profile.ptx or usual.variant or spec.name not in _SHARED_ROWS or "TILE_N" not in usual.tile:
        return [usual]
    others = [count for count in (4, 8, 16, 32) if count != lanes and count <= profile.lanes]
    return [usual, *(_with_lanes(usual, lanes, count, int(params["width"])) for count in others)]


def _with_lanes(usual: Tuning, lanes: int, count: int, width: int) -> Tuning:
    private = {**usual.private, "LANES": count}
    if "DEPTH" in private:
        private["DEPTH"] = min(4, ceil_div(width // 64, count)) if width >= 1024 else 1
    return Tuning({**usual.tile, "TILE_N": usual.tile["TILE_N"] * lanes // count}, private=private)


def unsupported(kernel: str, what: str) -> UnsupportedError:
    """It is not served for what."""
    return UnsupportedError(f"{kernel} is not served for {what}", backend="opencl", operation="tuning")


def power_of_two(n: int, largest: int) -> int:
    """The smallest power of two that is at least n, but no more than `largest`."""
    return min(1 << max(0, n - 1).bit_length(), largest)


def known_width(wanted: Wanted) -> Constants:
    """The width as a constant, where that is worth a program for each width."""
    return {"WIDTH": wanted["width"]} if wanted["width"] >= 1024 else {}


def aligned(wanted: Wanted) -> Constants:
    """Whether 8 elements of a table row start at a multiple of 16 bytes."""
    return {"ALIGNED": int(wanted["width"] % 8 == 0)}


def _rows(gpu: int, cpu: int, **tile: int) -> Callable[[Wanted], Tuning]:
    """Groups of so many work-items."""
    return lambda wanted: Tuning(tile, private={"GROUP": wanted.profile.group(cpu if wanted.profile.cpu else gpu)})


def _gpu_quantize(wanted: Wanted) -> Tuning:
    group, width = wanted.profile.group(512), wanted["width"]
    if wanted.constants["ABLOCK"]:
        return Tuning(private={"GROUP": group})
    share = ceil_div(width, group)
    return Tuning(private={"GROUP": group, "SHARE": share if width >= 1024 else power_of_two(share, 1024)})


def _gpu_argmax(wanted: Wanted) -> Tuning:
    rows, splits = wanted["rows"], ceil_div(wanted["vocab"], 2048)
    if not wanted.profile.ptx or splits == 1:
        return Tuning({"SPLITS": 1}, private={"GROUP": wanted.profile.group(1024)})
    splits = min(splits, 256)
    return Tuning({"SPLITS": splits}, "split", {"GROUP": 256}, 4 * rows * (1 + 2 * splits))


def _ternary_tile(tile_n: int, tile_t: int) -> Constants:
    return {"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}


def _gpu_prompt(wanted: Wanted) -> Tuning | None:
    """Tiles for many rows, of one scale a row or of blocks."""
    profile, rows, outs = wanted.profile, wanted["rows"], wanted["outs"]
    if rows > FEW_ROWS and profile.ptx:
        tile_n = 64 if ceil_div(outs, 128) * ceil_div(rows, 64) < 2 * profile.units else 128
        return Tuning(_ternary_tile(tile_n, 64), "mma", {"GROUP": 128})
    if rows > FEW_ROWS and profile.max_group >= 256:
        return Tuning(_ternary_tile(64, 64), "tiled", {"GROUP": 256})
    return None


def _gpu_ternary(wanted: Wanted) -> Tuning:
    profile, outs, width = wanted.profile, wanted["outs"], wanted["width"]
    if tiles := _gpu_prompt(wanted):
        return tiles
    group, lanes, per_set, depth = profile.group(128), min(8, profile.lanes), 1, 4
    if profile.ptx:  # enough loads on their way without too many groups
        lanes, per_set, depth = (16, 2, 3) if outs > 8192 else (32, 2, 4)
    tile = _ternary_tile(group // lanes * per_set, power_of_two(wanted["rows"], FEW_ROWS))
    depth = min(depth, ceil_div(width // 64, lanes)) if width >= 1024 else 1
    return Tuning(tile, private={"GROUP": group, "LANES": lanes, "DEPTH": depth, **known_width(wanted)})


def _gpu_block(wanted: Wanted) -> Tuning:
    if tiles := _gpu_prompt(wanted):
        return tiles
    profile, group = wanted.profile, wanted.profile.group(128)
    lanes, per_set = (16, 2) if profile.ptx else (min(8, profile.lanes), 1)
    tile = _ternary_tile(group // lanes * per_set, power_of_two(wanted["rows"], FEW_ROWS))
    return Tuning(tile, private={"GROUP": group, "LANES": lanes})


def _gpu_dense(wanted: Wanted) -> Tuning:
    group, lanes, rows = wanted.profile.group(128), wanted.profile.lanes, 2
    tile = {"TILE_N": group // lanes * rows, "TILE_T": power_of_two(wanted["rows"], 4)}
    return Tuning(
        tile, private={"GROUP": group, "LANES": lanes, "ROWS": rows, **aligned(wanted), **known_width(wanted)}
    )


def _gpu_attention(wanted: Wanted) -> Tuning:
    profile, head_dim = wanted.profile, wanted["head_dim"]
    if profile.ptx and wanted["rows"] > FEW_ROWS and wanted.constants["KV"] == 1 and head_dim in (64, 128):
        heads = _heads_at_once(wanted["n_heads"], wanted["n_kv_heads"])
        tile = {"TILE_N": heads, "TILE_T": 16 * max(1, 4 // heads), "SPLITS": 1}
        return Tuning(tile, "mma", {"GROUP": 2 * heads * tile["TILE_T"], "HEAD_DIM": head_dim})
    if ceil_div(head_dim, 8) <= profile.lanes:
        return _gpu_teams(wanted, "split")
    group = profile.group(256)
    spread = min(group, head_dim)
    spans = {"CHUNK": 256, "SPREAD": spread, "OWNED": ceil_div(head_dim, spread)}
    one = {"TILE_N": 1, "TILE_T": 1, "SPLITS": 1}
    return Tuning(one, private={"GROUP": group, "LANES": min(8, profile.lanes), **spans})


def _heads_at_once(heads: int, kv_heads: int) -> int:
    """Query heads of a group, which share a key/value head."""
    return max(count for count in range(1, 5) if heads // kv_heads % count == 0)


def _gpu_teams(wanted: Wanted, variant: str = "") -> Tuning:
    """attend.clh: teams of lanes, and where rows are few the positions shared out to groups."""
    profile, head_dim = wanted.profile, wanted["head_dim"]
    active = ceil_div(head_dim, 8)
    if active > profile.lanes:
        raise unsupported("rope_attention", f"heads of {head_dim} elements")
    rows = power_of_two(wanted["rows"], 1 << 30)  # prompts of any length shall share few programs
    heads = _heads_at_once(wanted["n_heads"], wanted["n_kv_heads"])
    groups = rows * (wanted["n_heads"] // heads)
    splits = min(MOST_SPLITS, ceil_div(2 * profile.units, groups)) if profile.ptx else 1
    quads = ceil_div(groups, 4) + groups * splits * heads * (2 * active + 1)
    team = {"LANES": power_of_two(active, profile.lanes), "HEAD_DIM": head_dim, "KEYS": 2, "HEADS": heads}
    private = {"GROUP": profile.group(128), "GROUPS": groups if splits > 1 else 1, **team}
    return Tuning({"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}, variant, private, 16 * quads if splits > 1 else 0)


def _gpu_norm_matmul(wanted: Wanted) -> Tuning:
    """Enough groups for all compute units, but not many more, as each does the norm again."""
    profile, width, outs = wanted.profile, wanted["width"], wanted["outs"]
    if wanted["rows"] > JOINED_ROWS:
        raise unsupported("norm_matmul", f"{wanted['rows']} rows")
    group, lanes = profile.group(256), 16 if width <= 4096 else 32
    per_set = 2 if outs * lanes > 2 * profile.units * group else 1
    if width * (1.5 if wanted.constants["BLOCK"] else 1) + 12 * group > LOCAL_BYTES:
        raise unsupported("norm_matmul", f"{width} columns")
    tile = {"TILE_N": group // lanes * per_set, "TILE_T": 1}
    return Tuning(tile, private={"GROUP": group, "LANES": lanes, "COLUMNS": wanted["columns"], "WIDTH": width})


def _gpu_layer(wanted: Wanted) -> Tuning:
    """decoder_layer: a group for each compute unit; shapes are constants."""
    profile, constants = wanted.profile, wanted.constants
    heads, kv_heads, dim, hidden, ffn = (wanted[n] for n in ("n_heads", "n_kv_heads", "head_dim", "hidden", "ffn"))
    if not profile.members or dim % 8 or hidden % 4 or ffn % 4:
        raise unsupported("decoder_layer", "this device" if not profile.members else "such sizes")
    group, at_once, active = 512 if profile.ptx else 32, _heads_at_once(heads, kv_heads), ceil_div(dim, 8)
    widest = max(ceil_div(size, 128) * 128 for size in (hidden, heads * dim, ffn))
    lanes = 16 if widest <= 8192 else 32  # rows of a lane shall fit in its registers
    sums = group // 32 * 16 * at_once * (dim // 4 + 1)
    codes = widest * 3 // 2 if constants["BLOCK"] else widest
    if active > lanes or max(sums, codes) + 4 * (at_once + 2) * dim + 12 * group // 32 + 128 > LOCAL_BYTES:
        raise unsupported("decoder_layer", f"heads of {dim} elements and {widest} columns")
    groups = heads // at_once
    splits = max(1, profile.members // groups)
    quads = ceil_div(groups, 4) + groups * splits * at_once * (2 * active + 1)
    shape = {"HIDDEN": hidden, "FFN": ffn, "N_HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": dim, "HEADS": at_once}
    work = {"GROUP": group, "LANES": lanes, "KEYS": 1, "UP_ROWS": 1 if constants["BLOCK"] else 2}
    return Tuning({"MEMBERS": profile.members}, "", {**shape, **work}, MEETING_BYTES + 16 * quads)


def _gpu_pack(wanted: Wanted) -> Tuning:
    group, lanes = wanted.profile.group(128), min(8, wanted.profile.lanes)
    return Tuning({"TILE_N": group // lanes}, private={"GROUP": group, "LANES": lanes})


def _gpu_draft(wanted: Wanted) -> Tuning:
    tile = {"TILE_N": HEAD_GROUP, "TILE_T": power_of_two(wanted["rows"], FEW_ROWS)}
    return Tuning(tile, private={"GROUP": wanted.profile.group(256), "LANES": wanted.profile.lanes, "ROWS": 2})


def _gpu_rescore(wanted: Wanted) -> Tuning:
    private = {"GROUP": wanted.profile.group(256), "LANES": wanted.profile.lanes, "DTYPE": 1, **aligned(wanted)}
    return Tuning({"TILE_N": 512, "TILE_T": 1}, private={**private, "HEAD_GROUP": HEAD_GROUP})


_GPU: dict[str, Callable[[Wanted], Tuning]] = {
    "embed_rows": _rows(256, 32, TILE_N=1024),
    "embed_rows_ternary": _rows(256, 32, TILE_N=1024),
    "rms_norm": _rows(512, 32),
    "rms_norm_quantize": _gpu_quantize,
    "glu_norm_quantize": _gpu_quantize,
    "argmax_advance": _gpu_argmax,
    "top_k": _rows(1024, 32, SPLITS=1),
    "rope_store_kv": _rows(64, 1, TILE_N=1),
    "matmul_ternary": _gpu_ternary,
    "matmul_ternary_block": _gpu_block,
    "matmul_dense": _gpu_dense,
    "attention": _gpu_attention,
    "rope_attention": _gpu_teams,
    "norm_matmul": _gpu_norm_matmul,
    "norm_matmul_glu": _gpu_norm_matmul,
    "decoder_layer": _gpu_layer,
    "pack_head": _gpu_pack,
    "draft_logits": _gpu_draft,
    "rescore_logits": _gpu_rescore,
}


def _cpu_ternary(wanted: Wanted) -> Tuning:
    rows = wanted["rows"]
    private = {"GROUP": 1, "ROWS": 2, "COLUMNS": power_of_two(rows, 4)}
    return Tuning(_ternary_tile(32, power_of_two(rows, 64)), "cpu", private)


def _cpu_block(wanted: Wanted) -> Tuning:
    return Tuning(_ternary_tile(4, power_of_two(wanted["rows"], 2)), private={"GROUP": 1, "LANES": 1})


def _cpu_dense(wanted: Wanted) -> Tuning:
    tile = {"TILE_N": 32, "TILE_T": power_of_two(wanted["rows"], 4)}
    return Tuning(tile, private={"GROUP": 1, "LANES": 1, "ROWS": 4, **aligned(wanted)})


def _cpu_attention(wanted: Wanted) -> Tuning:
    head_dim, one = wanted["head_dim"], {"TILE_N": 1, "TILE_T": 1, "SPLITS": 1}
    if head_dim % 16 == 0:
        return Tuning(one, "cpu", {"GROUP": 1, "OWNED": head_dim // 16})
    group = wanted.profile.group(16)
    private = {"SPREAD": group, "OWNED": ceil_div(head_dim, group), "LANES": 1, "CHUNK": 64}
    return Tuning(one, private={"GROUP": group, **private})


_CPU: dict[str, Callable[[Wanted], Tuning]] = {
    "embed_rows": _rows(256, 32, TILE_N=4096),
    "embed_rows_ternary": _rows(256, 32, TILE_N=4096),
    "rms_norm": _rows(512, 32),
    "rms_norm_quantize": _rows(1, 1),
    "glu_norm_quantize": _rows(1, 1),
    "argmax_advance": _rows(32, 32, SPLITS=1),
    "top_k": _rows(32, 32, SPLITS=1),
    "rope_store_kv": _rows(1, 1, TILE_N=16),
    "matmul_ternary": _cpu_ternary,
    "matmul_ternary_block": _cpu_block,
    "matmul_dense": _cpu_dense,
    "attention": _cpu_attention,
}
