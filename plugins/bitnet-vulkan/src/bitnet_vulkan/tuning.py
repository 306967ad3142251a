"""Which source, workgroup size and tile serves a launch, by kind of device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import DeviceType, Tuning
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.small_head import HEAD_GROUP
from bitnet_core.kernels.spec import KernelSpec

from bitnet_vulkan.describe import PhysicalDevice

FEW_ROWS = 8
"""Rows up to which weights are streamed past registers; more go through tiles."""
ROW_GROUP = 256
"""Invocations that normalize a row, alone or in front of a matrix product: the same in both, so that sums are too."""
MOST_GROUP_HEADS = 8
"""Query heads of one key/value head that the split attention keeps in registers."""
MATRIX_TILES = ((64, 64, 128), (128, 64, 128), (128, 128, 256))
"""Outputs, rows and invocations of a tile on matrix units."""
MEETING_WORDS = 9 * 32
"""Counters of meeting.glsl."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A launch on a device."""

    physical: PhysicalDevice
    name: str
    constants: Mapping[str, int]
    params: Mapping[str, int | float]

    def __getitem__(self, name: str) -> int:
        return int(self.params[name])

    @property
    def software(self) -> bool:
        """Software devices like small groups: each invocation is a loop there."""
        return self.physical.info.type is DeviceType.SOFTWARE

    @property
    def wave(self) -> int:
        """Invocations of a subgroup, 0 where it is not known."""
        return self.physical.features.subgroups

    def refuse(self, why: str) -> UnsupportedError:
        """The error for a launch that another kernel does better, or this one not at all."""
        device = self.physical.info.name
        return UnsupportedError(f"{self.name}: {why}", backend="vulkan", device=device, operation="tuning")


def choose(
    physical: PhysicalDevice, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
) -> Tuning:
    """The tuning of one launch; UnsupportedError where an optional kernel does not serve it."""
    return _CHOICES[spec.name](Wanted(physical, spec.name, constants, params))


def offered(
    physical: PhysicalDevice, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
) -> list[Tuning]:
    """What `choose` takes, then what may be quicker elsewhere: tiles on matrix units, lanes that share a matrix row."""
    first, others = choose(physical, spec, constants, params), list[Tuning]()
    if first.variant == "coop" and "outs" in params:
        others = [_but(first, n, {"GROUP": group}, TILE_T=t) for n, t, group in MATRIX_TILES]
    elif "LANES" in first.private and spec.name != "matmul_dense" and "outs" in params:
        work, wave = first.tile["TILE_N"] * first.private["LANES"], physical.features.subgroups
        others = [_but(first, work // lanes, {"LANES": lanes}) for lanes in (4, 8, 16, 32) if lanes <= min(wave, work)]
    return [first, *(one for one in others if one.key != first.key)]


def _but(tuning: Tuning, tile_n: int, private: dict[str, int], **tile: int) -> Tuning:
    return replace(tuning, tile={**tuning.tile, "TILE_N": tile_n, **tile}, private={**tuning.private, **private})


def _tile(rows: int, largest: int) -> int:
    return next(tile for tile in (1, 2, 4, 8) if rows <= tile or tile == largest)


def _row_group(width: int) -> int:
    return ROW_GROUP if width <= 16384 else 1024


def _room(rows: int) -> int:
    """Rows that a workspace has room for, so that few kernels serve all numbers of rows."""
    return max(FEW_ROWS, 1 << (rows - 1).bit_length())


def _embed(want: Wanted) -> Tuning:
    return Tuning({"TILE_N": 512 if want.software else 128}, private={"GROUP": 64})


def _row(want: Wanted) -> Tuning:
    width = int(want.params.get("stride", want["width"]))
    return Tuning(private={"GROUP": 128 if want.software else _row_group(width), "WIDTH": width})


def _lanes(want: Wanted, rows: int, outs: int) -> dict[str, int]:
    """How few rows share the lanes of a product."""
    lanes, width = min(16, want.wave), want["width"]
    group = 128 if want.software else _row_group(width)
    rows_per = 1 if width > 8192 else 4 if outs >= 8192 else 2
    if (
        rows > 2 and not want.software
    ):  # activations are most of the traffic: wide lanes, two rows for each load of them
        lanes, group, rows_per = want.wave, 128, 2
    return {"GROUP": group, "WIDTH": width, "LANES": lanes, "TILE_N": group // lanes * rows_per}


def _ternary(want: Wanted) -> Tuning:
    rows, outs = want["rows"], want["outs"]
    if rows > FEW_ROWS:
        if want.physical.features.matrix:
            return _matrix(rows, outs)
        return Tuning({"TILE_N": 64, "TILE_T": 64, "SPLITS": 1}, "tiled", {"GROUP": 256})
    tile_t = _tile(rows, 2 if want.software else 8)
    if not want.wave:
        group, tile_n = (32, 4) if want.software else (128, 8)
        return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, private={"GROUP": group})
    private = _lanes(want, rows, outs)
    return Tuning({"TILE_N": private.pop("TILE_N"), "TILE_T": tile_t, "SPLITS": 1}, "few", private)


def _matrix(rows: int, outs: int) -> Tuning:
    """Tiles as measured on an H200: the fewer there are, the smaller they must be to reach all multiprocessors."""
    tiles, (small, medium, large) = ceil_div(rows, 128) * ceil_div(outs, 128), MATRIX_TILES
    tile_n, tile_t, group = medium if tiles >= 200 else large if tiles >= 100 else small
    return Tuning({"TILE_N": tile_n, "TILE_T": tile_t, "SPLITS": 1}, "coop", {"GROUP": group, "WAVE_T": 32})


def _norm_matmul(want: Wanted) -> Tuning:
    if want["rows"] > 1:
        raise want.refuse("more rows are faster apart")
    private = _lanes(want, 1, want["outs"])
    return Tuning({"TILE_N": private.pop("TILE_N"), "TILE_T": 1}, private=private)


def _dense(want: Wanted) -> Tuning:
    rows, width = want["rows"], want["width"]
    if want.wave and want.constants["DTYPE"] == 1 and not want.software and width % 8 == 0 and width <= 8192:
        lanes, group, rows_per = want.wave, 128, 8
        private = {"GROUP": group, "WIDTH": width, "LANES": lanes, "BATCH": 2 if rows == 1 else 4}
        return Tuning({"TILE_N": group // lanes * rows_per, "TILE_T": _tile(rows, 8)}, "few", private)
    group, tile_n = (32, 4) if want.software else (128, 8)
    return Tuning({"TILE_N": tile_n, "TILE_T": _tile(rows, 2 if want.software else 8)}, private={"GROUP": group})


def _rope(want: Wanted) -> Tuning:
    group, dim = 16 if want.software else 64, want["head_dim"]
    if want["rows"] > FEW_ROWS and want.constants["KV"] < 2 and dim % 4 == 0 and dim <= 256:
        return Tuning({"TILE_N": 5}, "tiled", {"GROUP": group, "DIM": dim})
    return Tuning({"TILE_N": 1}, private={"GROUP": group})


def _attention(want: Wanted) -> Tuning:
    rows, dim = want["rows"], want["head_dim"]
    if rows > FEW_ROWS and want.physical.features.half_matrix and want.constants["KV"] == 1 and dim in (64, 128):
        tile_n = 2 if want["n_heads"] // want["n_kv_heads"] % 2 == 0 else 1
        return Tuning({"TILE_N": tile_n, "TILE_T": 32 // tile_n, "SPLITS": 1}, "coop", {"GROUP": 64, "DIM": dim})
    if rows > FEW_ROWS or not _splits(want):
        return Tuning({"TILE_N": 1, "TILE_T": 1, "SPLITS": 1}, private={"GROUP": 64})
    return _split(want, "split")


def _rope_attention(want: Wanted) -> Tuning:
    if want["rows"] > FEW_ROWS or not _splits(want):
        raise want.refuse("heads of this size, or so many rows, are served apart")
    return _split(want, "")


def _splits(want: Wanted) -> bool:
    dim, heads = want["head_dim"], want["n_heads"] // want["n_kv_heads"]
    return want.wave > 0 and dim % 8 == 0 and dim <= 256 and heads <= MOST_GROUP_HEADS


def _split(want: Wanted, variant: str) -> Tuning:
    """Workgroups share the positions of a row."""
    dim, heads, room = want["head_dim"], want["n_heads"] // want["n_kv_heads"], _room(want["rows"])
    lanes = next(n for n in (32, 16, 8, 4, 2, 1) if n <= want.wave and dim // 8 % n == 0)
    splits = min(16, want["max_blocks"])
    private = {"GROUP": heads * want.wave, "HEADS": heads, "DIM": dim, "LANES": lanes, "ROOM": room}
    private["BATCH"] = 1 if want.software else 4
    words = want["n_kv_heads"] + want["n_heads"] * splits * (dim + 2)
    return Tuning({"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}, variant, private, 4 * room * words)


def _argmax(want: Wanted) -> Tuning:
    if not want.wave:
        return Tuning(
            {"SPLITS": 1}, private={"GROUP": 32, "BATCH": 1} if want.software else {"GROUP": 1024, "BATCH": 16}
        )
    group, batch = (32, 1) if want.software else (256, 16)
    splits, room = min(32, ceil_div(want["vocab"], group * batch)), _room(want["rows"])
    private = {"GROUP": group, "BATCH": batch, "ROOM": room}
    return Tuning({"SPLITS": splits}, "split", private, 4 * room * (4 * splits + 1))


def _top_k(want: Wanted) -> Tuning:
    return Tuning({"SPLITS": 1}, private={"GROUP": 32 if want.software else 1024})


def _small_head(want: Wanted) -> Tuning:
    """A workgroup packs 16 rows of the head, drafts those of one bound, looks for open ones among 1024."""
    if int(want.params.get("rows", 1)) > 2 or want["width"] > 4096:
        raise want.refuse("so many rows, or such wide ones, are faster with all of the head")
    group = 4 * want.wave
    if want.name == "draft_logits":
        return Tuning({"TILE_N": HEAD_GROUP, "TILE_T": 1}, private={"GROUP": group, "WIDTH": want["width"], "BATCH": 4})
    if want.name == "rescore_logits":
        return Tuning({"TILE_N": 1024, "TILE_T": 1}, private={"GROUP": group if want.software else 256})
    return Tuning({"TILE_N": 16}, private={"GROUP": group})


def _layer(want: Wanted) -> Tuning:
    """A workgroup for each multiprocessor."""
    wave, members = want.wave, want.physical.features.resident
    hidden, ffn, dim, kv_heads = want["hidden"], want["ffn"], want["head_dim"], want["n_kv_heads"]
    heads = want["n_heads"] // kv_heads
    if hidden % 4 or ffn % 4 or heads > MOST_GROUP_HEADS or dim not in (32, 64, 128, 256) or dim < wave:
        raise want.refuse("layers of such a shape are served apart")
    group = 8 * wave if want.software else 512
    widest, waves = max(hidden, heads * kv_heads * dim, ffn), group // wave
    parts, fresh = 4 * waves * heads * (dim + 3), 4 * (heads + 2) * (dim + dim // wave)
    blocks = 32 * ceil_div(widest, 128) if want.constants["BLOCK"] else 32
    shared = max(parts, widest + 256 + 12 * waves * heads) + fresh + blocks + 4 * heads + 16 * waves + 64
    if shared > int(want.physical.info.extra["shared_memory"]):
        raise want.refuse("rows of such a width are served apart")
    # what a lane has of rows, weights and scales shall fit in its registers: 128 of them at groups of 512
    lanes, rows = 16 if widest <= 8192 else 32, 1 if want.constants["BLOCK"] else 2
    private = {"GROUP": group, "LANES": min(lanes, wave), "BATCH": 2, "ROWS": rows}
    shape = {"WIDTH": hidden, "FFN": ffn, "HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim}
    words = MEETING_WORDS + kv_heads + max(members, kv_heads) * heads * (dim + 2)
    return Tuning({"MEMBERS": members}, "resident", private | shape, 4 * words)


_CHOICES: dict[str, Callable[[Wanted], Tuning]] = {
    "argmax_advance": _argmax,
    "attention": _attention,
    "decoder_layer": _layer,
    "draft_logits": _small_head,
    "embed_rows": _embed,
    "embed_rows_ternary": _embed,
    "glu_norm_quantize": _row,
    "matmul_dense": _dense,
    "matmul_ternary": _ternary,
    "matmul_ternary_block": _ternary,
    "norm_matmul": _norm_matmul,
    "norm_matmul_glu": _norm_matmul,
    "pack_head": _small_head,
    "rescore_logits": _small_head,
    "rms_norm": _row,
    "rms_norm_quantize": _row,
    "rope_attention": _rope_attention,
    "rope_store_kv": _rope,
    "top_k": _top_k,
}
