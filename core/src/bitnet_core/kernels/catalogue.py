"""Every kernel that a device can offer, by name. Their conventions are in `bitnet_core.kernels.parts`."""

from __future__ import annotations

from bitnet_core.kernels import base, joined, small_head
from bitnet_core.kernels.parts import (
    DENSE_TYPES,
    KV_BLOCK,
    KV_TYPES,
    RELU2,
    SILU,
    STEP_FIELDS,
    ceil_div,
    kv_row_bytes,
)
from bitnet_core.kernels.spec import KernelSpec

__all__ = [
    "CATALOGUE",
    "DENSE_TYPES",
    "KV_BLOCK",
    "KV_TYPES",
    "RELU2",
    "SILU",
    "STEP_FIELDS",
    "ceil_div",
    "kv_row_bytes",
]

CATALOGUE: dict[str, KernelSpec] = {
    spec.name: spec
    for spec in (
        base.EMBED_ROWS,
        base.EMBED_ROWS_TERNARY,
        base.RMS_NORM_QUANTIZE,
        base.MATMUL_TERNARY,
        base.MATMUL_TERNARY_BLOCK,
        base.ROPE_STORE_KV,
        base.ATTENTION,
        base.GLU_NORM_QUANTIZE,
        base.RMS_NORM,
        base.MATMUL_DENSE,
        base.ARGMAX_ADVANCE,
        base.TOP_K,
        joined.NORM_MATMUL,
        joined.NORM_MATMUL_GLU,
        joined.ROPE_ATTENTION,
        joined.DECODER_LAYER,
        small_head.PACK_HEAD,
        small_head.DRAFT_LOGITS,
        small_head.RESCORE_LOGITS,
    )
}
"""Every kernel by name."""
