// matmul_ternary_glu with scales per row, for prompts (row_stream.cuh; compute capability 9.0): m[t, n] = act(g) * u,
// with g and u the outputs n and outs + n of matmul_ternary with w[2 outs, width / 4], exact integer sums; act(g) =
// max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1); q[rows, width].
#include "prelude.cuh"
#define ADD 0
#define PARTS 2
#include "row_stream.cuh"
#include "gated.cuh"

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary_glu(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                       float* __restrict__ m, u32 rows, u32 outs, u32 width, const __grid_constant__ TensorMap weights,
                       const __grid_constant__ TensorMap tokens) {
    auto store = [=](int (*acc)[SPAN_T / 2], const Factors* factors, const Sums* sums, u32 n, u32 t) {
        Outs gates = *(const Outs*)(wscale + min(n, outs - OWN)), ups = *(const Outs*)(wscale + outs + min(n, outs - OWN));
        store_outs(m, outs, outs, rows, n, t, [&](int i, int e) {
            int sum = e ? sums[4 * i].odd : sums[4 * i].even;
            float factor = e ? factors[4 * i].odd : factors[4 * i].even;
            Outs v;
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                float gate = (float)(acc[0][4 * i + 2 * r + e] - sum) * factor * gates.v[r];
                float up = (float)(acc[1][4 * i + 2 * r + e] - sum) * factor * ups.v[r];
                v.v[r] = gated(gate, up);
            }
            return v;
        });
    };
    stream_tiles(scale, qsum, rows, outs, width, weights, tokens, store);
}
