"""How launches are carried out: sources, tiles, threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import DeviceInfo, DeviceType, Tuning
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.spec import KernelSpec

from bitnet_webgpu.compile import SUBGROUPS
from bitnet_webgpu.describe import GROUP

FEW_ROWS = 8
"""Up to this many rows a product reads its matrix once for all of them without tiles."""
SPLIT_TOKENS, SPLITS = 8192, 64
"""Logits from which on a row is searched by several workgroups, and how many."""
LONGEST_LOOP = 32
"""Blocks of positions that a workgroup of a software adapter takes: llvmpipe ends loops after 65,535 turns in all."""
LARGE = 1 << 21
"""Results of a product from which on large tiles still occupy a GPU of a hundred multiprocessors."""
WIDEST = 16384
"""Columns of a row that is normed in every workgroup: 32 threads keep eight vec4 of 64 codes each, and GROUP threads
four times 16 columns."""
_HALVES = (1, 2)
"""DTYPE of f16 and bf16."""
_ELEMENTS, _ROW = {"TILE_N": GROUP}, dict[str, int]()
PLAIN = {
    "embed_rows": _ELEMENTS,
    "embed_rows_ternary": _ELEMENTS,
    "glu_norm_quantize": _ROW,
    "rms_norm": _ROW,
    "rms_norm_quantize": _ROW,
    "top_k": {"SPLITS": 1},
}
"""Tiles of kernels that are carried out in one way, by GROUP threads."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A launch to be tuned."""

    spec: KernelSpec
    constants: Mapping[str, int]
    params: Mapping[str, int | float]
    info: DeviceInfo

    def of(self, name: str) -> int:
        """A parameter that is a whole number."""
        return int(self.params[name])

    def room(self) -> int:
        """Rows that a workspace is for, so that few kernels serve all numbers of rows."""
        return 1 << (self.of("rows") - 1).bit_length()

    def refused(self, why: str) -> UnsupportedError:
        """To be raised for an optional kernel that is not worth it, or does not fit."""
        return UnsupportedError(why, backend=self.info.backend, device=self.info.name, operation=self.spec.name)


def choose(
    spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float], info: DeviceInfo
) -> Tuning:
    """UnsupportedError for what is not offered."""
    wanted = Wanted(spec, constants, params, info)
    if not spec.base and spec.name not in info.kernels:
        raise wanted.refused(f"it has no kernel {spec.name}")
    found = Tuning(PLAIN[spec.name]) if spec.name in PLAIN else _CHOICES[spec.name](wanted)
    always = {"GROUP": GROUP, SUBGROUPS: int(info.extra.get("subgroups", 1))}
    return replace(found, private=always | dict(found.private))


def offered(
    spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float], info: DeviceInfo
) -> list[Tuning]:
    """What `choose` takes, then what may be quicker elsewhere: tiles of prompts, threads that share a matrix row."""
    first = choose(spec, constants, params, info)
    others = []
    if first.variant == "tiled":
        others = [replace(first, tile={**first.tile, "TILE_T": rows}) for rows in (64, 128)]
    elif _CHOICES.get(spec.name) is _product:
        others = [_lanes(first, lanes) for lanes in (8, 16, 32)]
    return [first, *(one for one in others if one.key != first.key)]


def _lanes(tuning: Tuning, lanes: int) -> Tuning:
    tile, private = {**tuning.tile, "TILE_N": GROUP // lanes}, {**tuning.private, "LANES": lanes}
    return replace(tuning, tile=tile, private=private)


def _product(wanted: Wanted) -> Tuning:
    rows, lanes = wanted.of("rows"), 8
    if rows > FEW_ROWS:
        large = rows * wanted.of("outs") >= LARGE
        return Tuning({"TILE_N": 64, "TILE_T": 128 if large else 64, "SPLITS": 1}, "tiled")
    return Tuning({"TILE_N": GROUP // lanes, "TILE_T": wanted.room(), "SPLITS": 1}, private={"LANES": lanes})


def _norm_product(wanted: Wanted) -> Tuning:
    width, joined = wanted.of("width"), wanted.spec.name == "norm_matmul_glu"
    if wanted.of("rows") > 1:
        raise wanted.refused("several rows are faster with a launch for their norm")
    room = int(wanted.info.extra["workgroup_storage"])
    if width + width // 8 + 24 * GROUP > room or width > WIDEST:
        raise wanted.refused(f"{width} columns do not fit in {room} bytes of workgroup memory, or in registers")
    lanes = 4 if width <= 1024 else 8 if joined and width <= 4096 else 16 if width <= 8192 else 32
    return Tuning({"TILE_N": GROUP // lanes, "TILE_T": 1}, private={"LANES": lanes, "WIDTH": width})


def _rope(wanted: Wanted) -> Tuning:
    return Tuning({"TILE_N": 1}, private=_head(wanted))


def _head(wanted: Wanted) -> dict[str, int]:
    dim = wanted.of("head_dim")
    if dim > 2 * GROUP:
        raise wanted.refused(f"heads of {dim} elements are larger than {2 * GROUP}")
    return {"GROUP": 128 if dim <= 256 else GROUP, "HEAD_DIM": dim, "ROW_WORDS": wanted.of("row_bytes") // 4}


def _attention(wanted: Wanted) -> Tuning:
    heads, dim, blocks = wanted.of("n_heads"), wanted.of("head_dim"), wanted.of("max_blocks")
    most = 4 if dim <= 256 else 1  # so that their queries and values fit in workgroup memory
    together = max(n for n in range(1, most + 1) if heads // wanted.of("n_kv_heads") % n == 0)
    if wanted.info.type is DeviceType.SOFTWARE:
        splits = ceil_div(blocks, LONGEST_LOOP)
    else:
        splits = 1 if wanted.of("rows") > FEW_ROWS or blocks == 1 else min(16, 2 * blocks)
    tile = {"TILE_N": together, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=_head(wanted))
    return Tuning(tile, "split", _head(wanted), 4 * wanted.room() * heads * splits * (dim + 2))


def _dense(wanted: Wanted) -> Tuning:
    fast = wanted.constants["DTYPE"] in _HALVES and wanted.of("width") % 8 == 0
    return Tuning({"TILE_N": GROUP // 8, "TILE_T": 1}, private={"FAST": int(fast)})


def _argmax(wanted: Wanted) -> Tuning:
    if wanted.of("vocab") < SPLIT_TOKENS:
        return Tuning({"SPLITS": 1})
    return Tuning({"SPLITS": SPLITS}, "split", workspace=8 * wanted.room() * SPLITS)


_CHOICES: dict[str, Callable[[Wanted], Tuning]] = {
    "argmax_advance": _argmax,
    "attention": _attention,
    "matmul_dense": _dense,
    "matmul_ternary": _product,
    "matmul_ternary_block": _product,
    "norm_matmul": _norm_product,
    "norm_matmul_glu": _norm_product,
    "rope_attention": _attention,
    "rope_store_kv": _rope,
}
