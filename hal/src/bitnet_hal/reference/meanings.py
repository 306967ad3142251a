"""The reference of every kernel: a numpy function of (arrays by binding name, parameters, constants)."""

from __future__ import annotations

from collections.abc import Callable

from bitnet_hal.kernels.spec import Constants, Params
from bitnet_hal.reference import (
    attention,
    choose,
    delta,
    dense,
    experts,
    fused,
    lm_head_int8,
    quantize,
    repack,
    rotated,
    ternary,
)
from bitnet_hal.reference.quantize import Arrays

MEANINGS: dict[str, Callable[[Arrays, Params, Constants], None]] = {
    "embed_rows": dense.embed_rows,
    "embed_rows_ternary": dense.embed_rows_ternary,
    "rms_norm_quantize": quantize.rms_norm_quantize,
    "matmul_ternary": ternary.matmul_ternary,
    "matmul_ternary_block": ternary.matmul_ternary_block,
    "rope_store_kv": attention.rope_store_kv,
    "attention": attention.attention,
    "glu_norm_quantize": quantize.glu_norm_quantize,
    "rms_norm": quantize.rms_norm,
    "matmul_dense": dense.matmul_dense,
    "argmax_advance": choose.argmax_advance,
    "top_k": choose.top_k,
    "norm_matmul": fused.norm_matmul,
    "norm_matmul_glu": fused.norm_matmul_glu,
    "matmul_ternary_glu": fused.matmul_ternary_glu,
    "rope_attention": fused.rope_attention,
    "rope_attention_mixed": fused.rope_attention,
    "decoder_layer": fused.decoder_layer,
    "pack_head": lm_head_int8.pack_head,
    "approx_logits": lm_head_int8.approx_logits,
    "refine_logits": lm_head_int8.refine_logits,
    "hadamard_rotate": delta.hadamard_rotate,
    "glu": delta.glu,
    "causal_conv1d": delta.causal_conv1d,
    "gated_delta_rule": delta.gated_delta_rule,
    "gated_rms_norm": delta.gated_rms_norm,
    "norm_rotate_quantize": rotated.norm_rotate_quantize,
    "glu_rotate_quantize": rotated.glu_rotate_quantize,
    "gated_rotate_quantize": rotated.gated_rotate_quantize,
    "route_experts": experts.route_experts,
    "matmul_experts": experts.matmul_experts,
    "clamp_glu_quantize": experts.clamp_glu_quantize,
    "sum_experts": experts.sum_experts,
    "window_attention": attention.window_attention,
    "repack_q2_0": repack.repack_q2_0,
}
"""Reference function by kernel name. Arrays are flat, have the binding's dtype, and may be longer than the launch
needs."""
