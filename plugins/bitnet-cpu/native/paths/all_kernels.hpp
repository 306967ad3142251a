// The table of kernels of one code path. The including file defines BITNET_PATH and BITNET_PATH_NAME, and includes its
// simd/ and dot/ headers.
#pragma once
#include "kernels/argmax_advance.hpp"
#include "kernels/attention.hpp"
#include "kernels/causal_conv1d.hpp"
#include "kernels/clamp_glu_quantize.hpp"
#include "kernels/embed_rows.hpp"
#include "kernels/embed_rows_ternary.hpp"
#include "kernels/gated_delta_rule.hpp"
#include "kernels/gated_rms_norm.hpp"
#include "kernels/glu.hpp"
#include "kernels/glu_norm_quantize.hpp"
#include "kernels/hadamard_rotate.hpp"
#include "kernels/matmul_dense.hpp"
#include "kernels/matmul_experts.hpp"
#include "kernels/matmul_ternary.hpp"
#include "kernels/matmul_ternary_block.hpp"
#include "kernels/rms_norm.hpp"
#include "kernels/rms_norm_quantize.hpp"
#include "kernels/rope_store_kv.hpp"
#include "kernels/route_experts.hpp"
#include "kernels/sum_experts.hpp"
#include "kernels/lm_head_int8.hpp"
#include "kernels/top_k.hpp"

namespace bitnet::BITNET_PATH {

// Built by the compiler, not at load time: an initializer would run instructions of this path.
constexpr Path PATH = {
    BITNET_PATH_NAME,
    {embed_rows, rms_norm_quantize, matmul_ternary, matmul_ternary_block, rope_store_kv, attention, glu_norm_quantize,
     rms_norm, matmul_dense, argmax_advance, top_k, embed_rows_ternary, pack_head, approx_logits, refine_logits,
     hadamard_rotate, glu, causal_conv1d, gated_delta_rule, gated_rms_norm, route_experts, matmul_experts,
     clamp_glu_quantize, sum_experts, attention},
    PANEL_ROWS,
};

}  // namespace bitnet::BITNET_PATH
