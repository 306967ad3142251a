"""Every kernel that a device can offer, by name; `bitnet_hal.kernels.conventions` explains the notation."""

from __future__ import annotations

from bitnet_hal.kernels import base, delta, experts, fused, lm_head_int8, repack, rotated, window
from bitnet_hal.kernels.params import (
    ACT_GROUP_SIZES,
    DENSE_TYPES,
    KV_BLOCK,
    KV_TYPES,
    RELU2,
    SIGMOID,
    SILU,
    STEP_FIELDS,
    kv_row_bytes,
)
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.rounding import ceil_div

__all__ = [
    "ACT_GROUP_SIZES",
    "CATALOGUE",
    "DELTA_KERNELS",
    "DENSE_TYPES",
    "EXPERT_KERNELS",
    "KV_BLOCK",
    "KV_TYPES",
    "RELU2",
    "ROTATED_KERNELS",
    "SIGMOID",
    "SILU",
    "STEP_FIELDS",
    "UNFUSED_KERNELS",
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
        fused.NORM_MATMUL,
        fused.NORM_MATMUL_GLU,
        fused.MATMUL_TERNARY_GLU,
        fused.ROPE_ATTENTION,
        fused.ROPE_ATTENTION_MIXED,
        fused.DECODER_LAYER,
        lm_head_int8.PACK_HEAD,
        lm_head_int8.APPROX_LOGITS,
        lm_head_int8.REFINE_LOGITS,
        delta.HADAMARD_ROTATE,
        delta.GLU,
        delta.CAUSAL_CONV1D,
        delta.GATED_DELTA_RULE,
        delta.GATED_RMS_NORM,
        rotated.NORM_ROTATE_QUANTIZE,
        rotated.GLU_ROTATE_QUANTIZE,
        rotated.GATED_ROTATE_QUANTIZE,
        experts.ROUTE_EXPERTS,
        experts.MATMUL_EXPERTS,
        experts.CLAMP_GLU_QUANTIZE,
        experts.SUM_EXPERTS,
        window.WINDOW_ATTENTION,
        repack.REPACK_Q2_0,
    )
}
"""Every kernel by name; the order is that of the documentation."""

DELTA_KERNELS = frozenset(
    spec.name
    for spec in (delta.HADAMARD_ROTATE, delta.GLU, delta.CAUSAL_CONV1D, delta.GATED_DELTA_RULE, delta.GATED_RMS_NORM)
)
"""The kernels that a device must offer for models with gated delta nets, with or without rotated weights."""

ROTATED_KERNELS = frozenset(
    spec.name for spec in (rotated.NORM_ROTATE_QUANTIZE, rotated.GLU_ROTATE_QUANTIZE, rotated.GATED_ROTATE_QUANTIZE)
)
"""Optional kernels that fuse rotation and quantization with the norm, GLU or gate before them."""

EXPERT_KERNELS = frozenset(
    spec.name
    for spec in (experts.ROUTE_EXPERTS, experts.MATMUL_EXPERTS, experts.CLAMP_GLU_QUANTIZE, experts.SUM_EXPERTS)
)
"""The kernels that a device must offer for models with a mixture of experts; with sliding windows, window_attention
too."""

UNFUSED_KERNELS = frozenset({spec.name for spec in CATALOGUE.values() if spec.base} | {"top_k"} | DELTA_KERNELS)
"""Kernels that suffice for every step: all but the fused ones and those of the int8 head and of loading."""
