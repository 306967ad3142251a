// matmul_ternary_glu for batches (ternary_group.cuh): m[t, n] = act(g) * u, with g and u the outputs n and outs + n of
// matmul_ternary with w[2 outs, width / 4]; act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1). outs is even.
// A block computes TILE_N = 64 outputs from a tile of each half.
#include "prelude.cuh"
#include "ternary_group.cuh"
#include "gated.cuh"
#define TOKENS (SPAN_T / 8 / SHARES)  // tokens of which a thread writes two outputs each

KERNEL matmul_ternary_glu(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* m, u32 rows,
                          u32 outs, u32 width, const __grid_constant__ TensorMap tokens) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Shared s;
    Group group(pool, width);
    u32 n = blockIdx.x * TILE_N + group.n, t_first = blockIdx.y * SPAN_T;
    let_next_start();
    Words codes[PAIRS][2];
    group.load(codes, w, [&](u32 r) { return (size_t)group.tile * outs + min(n + r, outs - 1); });
    Pair gate_scales = *(const Pair*)(wscale + min(n, outs - 2)), up_scales = *(const Pair*)(wscale + outs + min(n, outs - 2));
    group.start_barriers(s);
    Fragments a;
    group.unpack_ahead(codes, a);
    wait_for_previous();
    group.copy(s, tokens, scale, qsum, t_first, rows);
    int acc[SUMS];
    group.multiply(s, codes, a, acc);
    group.put(acc);
    if (n >= outs) return;
#pragma unroll
    for (int e = 0; e < TOKENS; e++) {
        u32 at = threadIdx.x / 128 * TOKENS + e, token = group.token(at);
        Pair v;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float gate = (float)(group.sum(0, at, r) - s.qsum[token]) * s.scale[token] * gate_scales.v[r];
            float up = (float)(group.sum(1, at, r) - s.qsum[token]) * s.scale[token] * up_scales.v[r];
            v.v[r] = gated(gate, up);
        }
        if (t_first + token < rows) *(Pair*)(m + (size_t)(t_first + token) * outs + n) = v;
    }
}
