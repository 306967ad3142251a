"""How launches are carried out: sources, tiles, threads, by family of GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal import DeviceInfo, Tuning
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.spec import KernelSpec

from bitnet_metal.describe import FAMILY
from bitnet_metal.errors import refused


@dataclass(frozen=True, slots=True)
class Family:
    """What differs between families. None of it is measured: the numbers are guesses until an owner's report.

    few_rows: rows of activations up to which a product does without simdgroup_matrix, 4 at most.
    product, joined: threads of a threadgroup of a product, alone and with a norm before it.
    splits: most threadgroups that share the positions of a row.
    touch: whether pipelines are to be set once in an encoder that executes a recording; see recording.py.
    """

    few_rows: int
    product: int
    joined: int
    splits: int
    touch: bool


FAMILIES: dict[str, Family] = {
    "apple7": Family(few_rows=4, product=64, joined=256, splits=8, touch=True),  # M1
    "apple8": Family(few_rows=4, product=64, joined=256, splits=8, touch=True),  # M2
    "apple9": Family(few_rows=4, product=64, joined=256, splits=16, touch=False),  # M3, M4
    "apple10": Family(few_rows=4, product=64, joined=256, splits=16, touch=False),  # M5
}
"""By the name in DeviceInfo.extra["family"]."""
GROUP = 256
WIDEST = 65_535
"""Columns of a product whose sums are exact: kernels/codes.h proves it."""
ROOMS = (1024, 2048, 4096, 8192, 16384)
"""Columns that a product with a norm has threadgroup memory for; few, since each is a library of its own."""
SPLIT_TOKENS, SPLITS = 8192, 32
"""Logits from which on a row is searched by several threadgroups, and how many."""
_VECTORS = (0, 1, 2)
"""DTYPE of f32, f16 and bf16."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A launch to be tuned."""

    spec: KernelSpec
    constants: Mapping[str, int]
    params: Mapping[str, int | float]
    family: Family

    def of(self, name: str) -> int:
        """A parameter that is a whole number."""
        return int(self.params[name])

    def refused(self, why: str) -> UnsupportedError:
        """To be raised for sizes that a kernel does not serve."""
        return refused(why, self.spec.name)


def choose(
    spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float], info: DeviceInfo
) -> Tuning:
    """UnsupportedError for what is not offered."""
    if not spec.base and spec.name not in info.kernels:
        raise refused(f"it has no kernel {spec.name}", "tuning", info.name)
    family = FAMILIES[str(info.extra.get("family", f"apple{FAMILY}"))]
    return _CHOICES[spec.name](Wanted(spec, constants, params, family))


def _elements(wanted: Wanted) -> Tuning:
    return Tuning({"TILE_N": GROUP}, private={"GROUP": GROUP})


def _row(wanted: Wanted) -> Tuning:
    return Tuning(private={"GROUP": GROUP})


def _exact(wanted: Wanted) -> None:
    if wanted.of("width") > WIDEST:
        raise wanted.refused(f"sums of {wanted.of('width')} columns are not exact in f32; {WIDEST} at most")


def _product(wanted: Wanted) -> Tuning:
    _exact(wanted)
    if wanted.of("rows") > wanted.family.few_rows:
        return Tuning({"TILE_N": 64, "TILE_T": 32, "SPLITS": 1}, "tiled", {"GROUP": 128})
    group = wanted.family.product
    tile = {"TILE_N": group // 8, "TILE_T": 1 << (wanted.of("rows") - 1).bit_length(), "SPLITS": 1}
    return Tuning(tile, private={"GROUP": group})


def _norm_product(wanted: Wanted) -> Tuning:
    if wanted.of("rows") > 1:
        raise wanted.refused("several rows are better served by a launch for their norm")
    room = next((room for room in ROOMS if wanted.of("width") <= room), 0)
    if not room:
        raise wanted.refused(f"{wanted.of('width')} columns do not fit in threadgroup memory")
    group = wanted.family.joined
    made_by_simdgroup = 2 if wanted.spec.name == "norm_matmul_glu" else 4
    tile = {"TILE_N": group // 32 * made_by_simdgroup, "TILE_T": 1}
    return Tuning(tile, private={"GROUP": group, "ROOM": room})


def _head(wanted: Wanted) -> dict[str, int]:
    if wanted.of("head_dim") > 512:
        raise wanted.refused(f"heads of {wanted.of('head_dim')} elements are larger than 512")
    return {"GROUP": 128, "HEAD_DIM": wanted.of("head_dim"), "ROW_WORDS": wanted.of("row_bytes") // 4}


def _rope(wanted: Wanted) -> Tuning:
    return Tuning({"TILE_N": 4}, private=_head(wanted))


def _attention(wanted: Wanted) -> Tuning:
    head, shared_by = _head(wanted), wanted.of("n_heads") // wanted.of("n_kv_heads")
    most = min(8, 16 // ceil_div(head["HEAD_DIM"], 64))  # what attend.h keeps in registers
    heads = max(n for n in range(1, most + 1) if shared_by % n == 0)
    rows, blocks = wanted.of("rows"), wanted.of("max_blocks")
    few = rows <= wanted.family.few_rows and blocks > 1
    splits = min(wanted.family.splits, blocks) if few else 1
    tile = {"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=head)
    room = 4 * (1 << (rows - 1).bit_length()) * wanted.of("n_heads") * splits * (head["HEAD_DIM"] + 2)
    return Tuning(tile, "split", head, room)


def _dense(wanted: Wanted) -> Tuning:
    fast = int(wanted.constants["DTYPE"] in _VECTORS and wanted.of("width") % 4 == 0)
    rows = min(4, 1 << (wanted.of("rows") - 1).bit_length())
    return Tuning({"TILE_N": GROUP // 16, "TILE_T": rows}, private={"GROUP": GROUP, "FAST": fast})


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
