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
WIDEST = 8 * 32 * 64
"""Columns of a row that is normed in every workgroup: 32 threads keep eight vec4 of 64 codes each, and 256 threads four
times 16 columns."""
_HALVES = (1, 2)
"""DTYPE of f16 and bf16."""


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

    def refused(self, why: str) -> UnsupportedError:
        """To be raised for an optional kernel that is not worth it, or does not fit."""
        return UnsupportedError(why, backend=self.info.backend, device=self.info.name, operation=self.spec.name)


def choose(
    spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float], info: DeviceInfo
) -> Tuning:
    """UnsupportedError for what is not offered."""
    if not spec.base and spec.name not in info.kernels:
        raise Wanted(spec, constants, params, info).refused(f"it has no kernel {spec.name}")
    found = _CHOICES[spec.name](Wanted(spec, constants, params, info))
    return replace(found, private={**found.private, SUBGROUPS: int(info.extra.get(SUBGROUPS, 1))})


def _elements(wanted: Wanted) -> Tuning:
    return Tuning({"TILE_N": GROUP}, private={"GROUP": GROUP})


def _row(wanted: Wanted) -> Tuning:
    return Tuning(private={"GROUP": GROUP})


def _product(wanted: Wanted) -> Tuning:
    rows = wanted.of("rows")
    if rows > FEW_ROWS:
        large = rows * wanted.of("outs") >= LARGE
        tile = {"TILE_N": 64, "TILE_T": 128 if large else 64, "SPLITS": 1}
        return Tuning(tile, "tiled", {"GROUP": GROUP})
    lanes = 8
    tile = {"TILE_N": GROUP // lanes, "TILE_T": 1 << (rows - 1).bit_length(), "SPLITS": 1}
    return Tuning(tile, private={"GROUP": GROUP, "LANES": lanes})


def _norm_product(wanted: Wanted) -> Tuning:
    width, joined = wanted.of("width"), wanted.spec.name == "norm_matmul_glu"
    if wanted.of("rows") > 1:
        raise wanted.refused("several rows are faster with a launch for their norm")
    room = int(wanted.info.extra["workgroup_storage"])
    if width + width // 8 + 20 * GROUP > room or width > WIDEST:
        raise wanted.refused(f"{width} columns do not fit in {room} bytes of workgroup memory, or in registers")
    lanes = 4 if width <= 1024 else 8 if joined and width <= 4096 else 16 if width <= 8192 else 32
    tile = {"TILE_N": GROUP // lanes, "TILE_T": 1}
    return Tuning(tile, private={"GROUP": GROUP, "LANES": lanes, "WIDTH": width})


def _rope(wanted: Wanted) -> Tuning:
    return Tuning({"TILE_N": 1}, private=_head(wanted))


def _head(wanted: Wanted) -> dict[str, int]:
    dim = wanted.of("head_dim")
    if dim > 2 * GROUP:
        raise wanted.refused(f"heads of {dim} elements are larger than {2 * GROUP}")
    group = 128 if dim <= 256 else GROUP
    return {"GROUP": group, "HEAD_DIM": dim, "ROW_WORDS": wanted.of("row_bytes") // 4}


def _attention(wanted: Wanted) -> Tuning:
    shared_by = wanted.of("n_heads") // wanted.of("n_kv_heads")
    most = 4 if wanted.of("head_dim") <= 256 else 1  # so that their queries and values fit in workgroup memory
    heads = max(n for n in range(1, most + 1) if shared_by % n == 0)
    rows, blocks = wanted.of("rows"), wanted.of("max_blocks")
    if wanted.info.type is DeviceType.SOFTWARE:
        splits = ceil_div(blocks, LONGEST_LOOP)
    else:
        splits = 1 if rows > FEW_ROWS or blocks == 1 else min(16, 2 * blocks)
    tile = {"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=_head(wanted))
    rows = 1 << (rows - 1).bit_length()
    room = 4 * rows * wanted.of("n_heads") * splits * (wanted.of("head_dim") + 2)
    return Tuning(tile, "split", _head(wanted), room)


def _dense(wanted: Wanted) -> Tuning:
    fast = int(wanted.constants["DTYPE"] in _HALVES and wanted.of("width") % 8 == 0)
    return Tuning({"TILE_N": GROUP // 8, "TILE_T": 1}, private={"GROUP": GROUP, "FAST": fast})


def _argmax(wanted: Wanted) -> Tuning:
    if wanted.of("vocab") < SPLIT_TOKENS:
        return Tuning({"SPLITS": 1}, private={"GROUP": GROUP})
    rows = 1 << (wanted.of("rows") - 1).bit_length()
    return Tuning({"SPLITS": SPLITS}, "split", {"GROUP": GROUP}, 8 * rows * SPLITS)


def _top_k(wanted: Wanted) -> Tuning:
    return Tuning({"SPLITS": 1}, private={"GROUP": GROUP})


_CHOICES: dict[str, Callable[[Wanted], Tuning]] = {
    "argmax_advance": _argmax,
    "attention": _attention,
    "embed_rows": _elements,
    "embed_rows_ternary": _elements,
    "glu_norm_quantize": _row,
    "matmul_dense": _dense,
    "matmul_ternary": _product,
    "matmul_ternary_block": _product,
    "norm_matmul": _norm_product,
    "norm_matmul_glu": _norm_product,
    "rms_norm": _row,
    "rms_norm_quantize": _row,
    "rope_attention": _attention,
    "rope_store_kv": _rope,
    "top_k": _top_k,
}
