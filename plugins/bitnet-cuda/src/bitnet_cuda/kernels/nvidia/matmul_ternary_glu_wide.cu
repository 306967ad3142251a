// matmul_ternary_glu with one activation scale per 128 columns, for prompts (compute capability 9.0): m[t, n] = act(g)
// * u, with g and u the sums of block_wide.cuh for rows n and outs + n of w[2 outs, width / 4]; act(g) = max(g, 0)^2
// (ACT 0) or g / (1 + exp(-g)) (ACT 1); q[rows, width], ABLOCK 128, BLOCK 128 or 256.
#include "prelude.cuh"
#define ADD 0
#define PARTS 2
#include "block_wide.cuh"
#include "gated.cuh"

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary_glu(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                       float* __restrict__ m, u32 rows, u32 outs, u32 width, const __grid_constant__ TensorMap weights,
                       const __grid_constant__ TensorMap tokens) {
    auto store = [=](float (*acc)[SPAN_T / 2], u32 n, u32 t) {
        store_outs(m, outs, outs, rows, n, t, [&](int i, int e) {
            Outs v;
#pragma unroll
            for (int r = 0; r < OWN; r++) v.v[r] = gated(acc[0][4 * i + 2 * r + e], acc[1][4 * i + 2 * r + e]);
            return v;
        });
    };
    wide_tiles(wscale, scale, rows, outs, width, weights, tokens, store);
}
