"""How launches are carried out: sources, tiles, threads, by family of GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bitnet_hal.plugin import Tuning, TuningQuery, table
from bitnet_hal.rounding import ceil_div

GROUP = 256  # threads of a threadgroup, where nothing speaks for others
ALONE = {"GROUP": GROUP}
WIDEST = 65_535  # columns of a product whose sums are exact: kernels/codes.h proves it
ROOMS = (1024, 2048, 4096, 8192, 16384)  # columns that a norm in its product's launch has memory for; a library each
ROTATIONS, KEYS = (1024, 4096), (64, 128, 256, 1024)  # columns of a transform, and keys of a head, likewise
WHOLE_ROWS = 64  # of more rows a threadgroup norms and rotates all, where these are fused
SPLIT_TOKENS, SPLITS = 8192, 32  # logits from which on a row is searched by several threadgroups, and how many
Family = Mapping[str, int]  # a row of families.toml
FAMILIES: dict[str, Family] = table(__file__, "families.toml")


def select_tuning(query: TuningQuery) -> Tuning:
    """UnsupportedError for what is not offered."""
    return _CHOICES[query.spec.name](query, FAMILIES[str(query.info.extra["family"])])


def _product(query: TuningQuery, family: Family) -> Tuning:
    if query["width"] > WIDEST:
        raise query.unsupported(f"sums of {query['width']} columns are not exact in f32, only of {WIDEST}")
    if query["rows"] > family["few_rows"]:
        return Tuning({"TILE_N": 64, "TILE_T": 32, "SPLITS": 1}, "tiled", {"GROUP": 128})
    tile = {"TILE_N": family["product"] // 8, "TILE_T": query.padded_rows, "SPLITS": 1}
    return Tuning(tile, private={"GROUP": family["product"]})


def _norm_product(query: TuningQuery, family: Family) -> Tuning:
    room = next((room for room in ROOMS if query["width"] <= room), 0)
    if not room or query["rows"] > 1:
        raise query.unsupported(f"a norm for {query['rows']} rows of {query['width']} columns has its own launch")
    tile = {"TILE_N": family["fused"] // (16 if "ACT" in query else 8), "TILE_T": 1}
    return Tuning(tile, private={"GROUP": family["fused"], "ROOM": room})


def _head(query: TuningQuery) -> dict[str, int]:
    if query["head_dim"] > 512:
        raise query.unsupported(f"heads of {query['head_dim']} elements are larger than 512")
    return {"GROUP": 128, "HEAD_DIM": query["head_dim"], "ROW_WORDS": query["row_bytes"] // 4}


def _attention(query: TuningQuery, family: Family) -> Tuning:
    head, rows = _head(query), query["rows"]
    most = min(8, 16 // ceil_div(head["HEAD_DIM"], 64))  # what attend.h keeps in registers
    heads = query.shared_heads(most)
    splits = min(family["splits"], query["max_blocks"]) if rows <= family["few_rows"] else 1
    tile = {"TILE_N": heads, "TILE_T": 1, "SPLITS": splits}
    if splits == 1:
        return Tuning(tile, private=head)
    return Tuning(tile, "split", head, 4 * query.padded_rows * query["n_heads"] * splits * (head["HEAD_DIM"] + 2))


def _dense(query: TuningQuery, family: Family) -> Tuning:
    fast = int(query["DTYPE"] <= 2 and query["width"] % 4 == 0)  # f32, f16, bf16
    tile = {"TILE_N": GROUP // 16, "TILE_T": min(4, query.padded_rows)}
    return Tuning(tile, private={"GROUP": GROUP, "FAST": fast})


def _choice(query: TuningQuery, family: Family) -> Tuning:
    if "k" in query or query["vocab"] < SPLIT_TOKENS:
        return Tuning({"SPLITS": 1}, private={"GROUP": GROUP})
    return Tuning({"SPLITS": SPLITS}, "split", {"GROUP": GROUP}, 8 * query.padded_rows * SPLITS)


def _rotation(query: TuningQuery, family: Family) -> Tuning:
    room = next((room for room in ROTATIONS if query["block"] <= room), 0)
    if not room:
        raise query.unsupported(f"a rotation of {query['block']} columns at a time is larger than {ROTATIONS[-1]}")
    return Tuning(private={"GROUP": GROUP, "ROOM": room})


def _rotated(query: TuningQuery, family: Family) -> Tuning:
    """A rotation with what stands before it and the quantizer: a thread has four columns."""
    block, norm = query["block"], "NORM" in query and query["NORM"] == 1
    private = {"GROUP": block // 4, "ROOM": ROTATIONS[0]}
    if block > ROTATIONS[0] or block % 128:
        raise query.unsupported(f"rotations of {block} columns are not fused")
    if query.spec.name == "gated_rotate_quantize":
        private["HEAD_DIM"] = dim = query["head_dim"]
        if dim % 4 or (norm and block % dim):
            raise query.unsupported(f"heads of {dim} elements are not fused")
        return Tuning({"TILE_N": 1}, private=private)
    whole = norm and query["rows"] > WHOLE_ROWS
    return Tuning({"TILE_N": query["width"] // block if whole else 1}, private=private)


def _convolution(query: TuningQuery, family: Family) -> Tuning:
    """Many rows are shared out in strips."""
    few = query["rows"] <= 8
    return Tuning({"TILE_N": 64 if few else 32}, private={"GROUP": 64 if few else GROUP})


def _delta_rule(query: TuningQuery, family: Family) -> Tuning:
    room = next(room for room in KEYS if query["key_dim"] <= room)
    return Tuning({"TILE_N": 32}, private={"GROUP": 256, "ROOM": room})


_CHOICES: dict[str, Callable[[TuningQuery, Family], Tuning]] = {
    **dict.fromkeys(("embed_rows", "embed_rows_ternary"), lambda *_: Tuning({"TILE_N": GROUP}, private=ALONE)),
    **dict.fromkeys(("rms_norm", "rms_norm_quantize", "glu_norm_quantize"), lambda *_: Tuning(private=ALONE)),
    **dict.fromkeys(("matmul_ternary", "matmul_ternary_block"), _product),
    **dict.fromkeys(("norm_matmul", "norm_matmul_glu"), _norm_product),
    **dict.fromkeys(("attention", "rope_attention"), _attention),
    **dict.fromkeys(("argmax_advance", "top_k"), _choice),
    **dict.fromkeys(("norm_rotate_quantize", "glu_rotate_quantize", "gated_rotate_quantize"), _rotated),
    "hadamard_rotate": _rotation,
    "glu": lambda *_: Tuning(private=ALONE),
    "causal_conv1d": _convolution,
    "gated_delta_rule": _delta_rule,
    "gated_rms_norm": lambda *_: Tuning(private={"GROUP": 64}),
    "rope_store_kv": lambda query, _: Tuning({"TILE_N": 4}, private=_head(query)),
    "matmul_dense": _dense,
}
