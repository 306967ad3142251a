// matmul_ternary on Hopper's warpgroup tensor cores (compute capability 9.0), for prompts, exact integers
// (row_stream.cuh): y[t, n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n]; w[outs, width / 4],
// q[rows, width].
#include "prelude.cuh"
#include "row_stream.cuh"

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                   float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                   const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens) {
    auto store = [=](int (*acc)[SPAN_T / 2], const Factors* factors, const Sums* sums, u32 n, u32 t) {
        Outs scales = *(const Outs*)(wscale + min(n, outs - OWN));
        store_outs(y + y_first, y_stride, outs, rows, n, t, [&](int i, int e) {
            int sum = e ? sums[4 * i].odd : sums[4 * i].even;
            float factor = e ? factors[4 * i].odd : factors[4 * i].even;
            Outs v;
#pragma unroll
            for (int r = 0; r < OWN; r++) v.v[r] = (float)(acc[r / 2][4 * i + r % 2 * 2 + e] - sum) * factor * scales.v[r];
            return v;
        });
    };
    stream_tiles(scale, qsum, rows, outs, width, weights, tokens, store);
}
