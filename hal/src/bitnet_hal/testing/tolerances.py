"""The largest difference between a device and the numpy reference that each kernel allows, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A bound: |actual - expected| <= relative * |expected| + scaled * max |expected of the same row|.

    codes: largest distance of an int8 code's exact value from a rounding tie at which either code is accepted, in steps
    (f32 sums in another order move only values next to a tie).
    """

    relative: float = 0.0
    scaled: float = 0.0
    codes: float = 0.0


TOLERANCES = {
    # a table lookup: d * scale * code has at most one rounding, so every order of the products gives the same f32
    "embed_rows": Tolerance(),
    # as embed_rows, for codes of -1, 0 and 1
    "embed_rows_ternary": Tolerance(),
    # sum of squares in any order, a reciprocal square root and a division good to a few units in the last place
    "rms_norm_quantize": Tolerance(relative=4e-6, codes=1e-3),
    # exact sums; two products, and one sum that may be fused with the last of them
    "matmul_ternary": Tolerance(relative=3e-7, scaled=2e-7),
    # exact inner sums; up to K / 64 of them added in f32
    "matmul_ternary_block": Tolerance(relative=1e-6, scaled=4e-6),
    # two products and a sum; cache rows are then rounded to f16 or int8 (see `compare`)
    "rope_store_kv": Tolerance(relative=1e-6, scaled=5e-7, codes=1e-3),
    # exponentials and two long sums in f32
    "attention": Tolerance(relative=2e-5, scaled=2e-5),
    # as rms_norm_quantize; SiLU's exponential may be a fast one
    "glu_norm_quantize": Tolerance(relative=2e-5, codes=5e-3),
    "rms_norm": Tolerance(relative=4e-6),
    # K products added in any order, but in f32: sums in f16 or tf32 are off by 5e-4 or more
    "matmul_dense": Tolerance(relative=1e-5, scaled=1e-5),
    # indices and copies
    "argmax_advance": Tolerance(),
    "top_k": Tolerance(),
    # a sum of exponentials, good to a few units in the last place, and its logarithm
    "top_k.total": Tolerance(relative=1e-5, scaled=1e-5),
    # the scale of rms_norm_quantize (the cases make its codes exact), then the operations of matmul_ternary
    "norm_matmul": Tolerance(relative=5e-6, scaled=2e-6),
    # norm_matmul twice; the gate is squared, and SiLU's exponential may be a fast one
    "norm_matmul_glu": Tolerance(relative=3e-5, scaled=1e-6),
    # exact sums; the gate is squared, and SiLU's exponential may be a fast one
    "matmul_ternary_glu": Tolerance(relative=2e-5, scaled=1e-6),
    # as attention
    "rope_attention": Tolerance(relative=2e-5, scaled=2e-5),
    "rope_attention_mixed": Tolerance(relative=2e-5, scaled=2e-5),
    # four quantizations in a row, each of which may round a value next to a tie the other way: one code of 1 / 127
    "decoder_layer": Tolerance(scaled=1e-2),
    # the division by the absmax and two norms; a code next to a rounding tie moves by one (see `compare`)
    "pack_head": Tolerance(relative=2e-6),
    # as matmul_dense
    "approx_logits": Tolerance(relative=1e-5, scaled=1e-5),
    # as matmul_dense; `compare_head` checks which logits may stay approximate
    "refine_logits": Tolerance(relative=1e-5, scaled=1e-5),
    # log2(block) sums in f32, in the transform's own order or another, and one product
    "hadamard_rotate": Tolerance(relative=1e-6, scaled=2e-6),
    # SiLU's exponential may be a fast one
    "glu": Tolerance(relative=1e-5, scaled=1e-6),
    # a sum of a few products, and SiLU
    "causal_conv1d": Tolerance(relative=1e-5, scaled=2e-6),
    # states are copies of inputs
    "causal_conv1d.state": Tolerance(),
    # two sums over a key, accumulated in a decaying state
    "gated_delta_rule": Tolerance(relative=2e-5, scaled=2e-5),
    "gated_rms_norm": Tolerance(relative=1e-5, scaled=1e-6),
    # as the kernels that they fuse; a code next to a rounding tie may move by one
    "norm_rotate_quantize": Tolerance(relative=6e-6, codes=2e-3),
    "glu_rotate_quantize": Tolerance(relative=2e-5, codes=5e-3),
    "gated_rotate_quantize": Tolerance(relative=2e-5, codes=5e-3),
    # a few exponentials, which may be fast ones, their sum, and a division
    "route_experts": Tolerance(relative=1e-5),
    # as matmul_ternary_block
    "matmul_experts": Tolerance(relative=1e-6, scaled=4e-6),
    # as glu_norm_quantize
    "clamp_glu_quantize": Tolerance(relative=2e-5, codes=5e-3),
    # a product for each expert, each of which may be fused with its sum
    "sum_experts": Tolerance(relative=1e-6, scaled=1e-6),
    # as attention
    "window_attention": Tolerance(relative=2e-5, scaled=2e-5),
    # bits are moved
    "repack_q2_0": Tolerance(),
}
"""Tolerance by kernel, or by kernel and output. Integers are exact, and NaN must appear exactly where the reference
has NaN."""
