"""How launches are carried out: sources, tiles, threads, by family of GPU."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from bitnet_core.hal import DeviceInfo, Tuning
from bitnet_core.kernels.catalogue import ceil_div
from bitnet_core.kernels.spec import KernelSpec

from bitnet_metal.errors import refused

GROUP = 256  # threads of a threadgroup, where nothing speaks for others
ALONE = {"GROUP": GROUP}
WIDEST = 65_535  # columns of a product whose sums are exact: kernels/codes.h proves it
ROOMS = (1024, 2048, 4096, 8192, 16384)  # columns that a norm in its product's launch has memory for; a library each
SPLIT_TOKENS, SPLITS = 8192, 32  # logits from which on a row is searched by several threadgroups, and how many
Sizes = Mapping[str, int]  # constants and parameters of a launch, or a row of families.toml
FAMILIES: dict[str, Sizes] = tomllib.loads((Path(__file__).parent / "families.toml").read_text("utf-8"))


def choose(
    spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float], info: DeviceInfo
) -> Tuning:
    """UnsupportedError for what is not offered."""
    if not spec.base and spec.name not in info.kernels:
        raise refused(f"it has no kernel {spec.name}", "tuning")
    sizes = dict(constants) | {param.name: int(params[param.name]) for param in spec.params}
    return _CHOICES[spec.name](sizes, FAMILIES[str(info.extra["family"])])


def _product(sizes: Sizes, family: Sizes) -> Tuning:
    if sizes["width"] > WIDEST:
        raise refused(f"sums of {sizes['width']} columns are not exact in f32, only of {WIDEST}", "matmul_ternary")
    if sizes["rows"] > family["few_rows"]:
        return Tuning({"TILE_N": 64, "TILE_T": 32, "SPLITS": 1}, "tiled", {"GROUP": 128})
    tile = {"TILE_N": family["product"] // 8, "TILE_T": 1 << (sizes["rows"] - 1).bit_length(), "SPLITS": 1}
    return Tuning(tile, private={"GROUP": family["product"]})


def _norm_product(sizes: Sizes, family: Sizes) -> Tuning:
    room = next((room for room in ROOMS if sizes["width"] <= room), 0)
    if not room or sizes["rows"] > 1:
        raise refused(f"a norm for {sizes['rows']} rows of {sizes['width']} columns has its own launch", "norm_matmul")
    tile = {"TILE_N": family["joined"] // (16 if "ACT" in sizes else 8), "TILE_T": 1}
    return Tuning(tile, private={"GROUP": family["joined"], "ROOM": room})


def _head(sizes: Sizes) -> dict[str, int]:
    if sizes["head_dim"] > 512:
        raise refused(f"heads of {sizes['head_dim']} elements are larger than 512", "attention")
    return {"GROUP": 128, "HEAD_DIM": sizes["head_dim"], "ROW_WORDS": sizes["row_bytes"] // 4}


def _attention(sizes: Sizes, family: Sizes) -> Tuning:
    head, rows, shared_by = _head(sizes), sizes["rows"], sizes["n_heads"] // sizes["n_kv_heads"]
    most = min(8, 16 // ceil_div(head["HEAD_DIM"], 64))  # what attend.h keeps in registers
    heads = max(n for n in range(1, most + 1) if shared_by % n == 0)
    splits = min(family["splits"], sizes["max_blocks"]) if rows <= family["few_rows"] else 1
    tile = {"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=head)
    return Tuning(
        tile, "split", head, 4 * (1 << (rows - 1).bit_length()) * sizes["n_heads"] * splits * (head["HEAD_DIM"] + 2)
    )


def _dense(sizes: Sizes, family: Sizes) -> Tuning:
    fast = int(sizes["DTYPE"] <= 2 and sizes["width"] % 4 == 0)  # f32, f16, bf16
    tile = {"TILE_N": GROUP // 16, "TILE_T": min(4, 1 << (sizes["rows"] - 1).bit_length())}
    return Tuning(tile, private={"GROUP": GROUP, "FAST": fast})


def _choice(sizes: Sizes, family: Sizes) -> Tuning:
    if "k" in sizes or sizes["vocab"] < SPLIT_TOKENS:
        return Tuning({"SPLITS": 1}, private={"GROUP": GROUP})
    return Tuning({"SPLITS": SPLITS}, "split", {"GROUP": GROUP}, 8 * (1 << (sizes["rows"] - 1).bit_length()) * SPLITS)


_CHOICES: dict[str, Callable[[Sizes, Sizes], Tuning]] = {
    **dict.fromkeys(("embed_rows", "embed_rows_ternary"), lambda *_: Tuning({"TILE_N": GROUP}, private=ALONE)),
    **dict.fromkeys(("rms_norm", "rms_norm_quantize", "glu_norm_quantize"), lambda *_: Tuning(private=ALONE)),
    **dict.fromkeys(("matmul_ternary", "matmul_ternary_block"), _product),
    **dict.fromkeys(("norm_matmul", "norm_matmul_glu"), _norm_product),
    **dict.fromkeys(("attention", "rope_attention"), _attention),
    **dict.fromkeys(("argmax_advance", "top_k"), _choice),
    "rope_store_kv": lambda sizes, _: Tuning({"TILE_N": 4}, private=_head(sizes)),
    "matmul_dense": _dense,
}
