// matmul_ternary_block with one activation scale per 128 columns, for prompts (compute capability 9.0): y[t, n] (+)=
// the sums of block_wide.cuh; w[outs, width / 4], q[rows, width], ABLOCK 128, BLOCK 128 or 256.
#include "prelude.cuh"
#include "block_wide.cuh"

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                         float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                         const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens) {
    auto store = [=](float (*acc)[SPAN_T / 2], u32 n, u32 t) {
        store_outs(y + y_first, y_stride, outs, rows, n, t, [&](int i, int e) {
            Outs v;
#pragma unroll
            for (int r = 0; r < OWN; r++) v.v[r] = acc[r / 2][4 * i + r % 2 * 2 + e];
            return v;
        });
    };
    wide_tiles(wscale, scale, rows, outs, width, weights, tokens, store);
}
