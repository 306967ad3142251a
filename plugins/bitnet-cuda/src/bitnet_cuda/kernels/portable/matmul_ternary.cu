// y[t, y_first + n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] * wscale[n]; w[N, width/4] in I2_S blocks of 128
// columns.
// For few rows: a block computes TILE_N x TILE_T outputs; GROUP / TILE_N lanes (a power of two, at most 32) share a
// weight row and load 16 bytes = 64 weights at a time (planes.cuh).
#include "prelude.cuh"
#include "planes.cuh"

#define LANES (GROUP / TILE_N)

KERNEL matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* y,
                      u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    let_next_start();
    wait_for_previous();
    u32 lane = threadIdx.x % LANES, n = blockIdx.x * TILE_N + threadIdx.x / LANES, first = blockIdx.y * TILE_T;
    u32 chunks = width / 64, row_words = width / 16, tokens = min((u32)TILE_T, rows - first);
    int acc[TILE_T][4];
#pragma unroll
    for (int t = 0; t < TILE_T; t++)
        for (int s = 0; s < 4; s++) acc[t][s] = 0;
    if (n < outs) {
        const Words* row = w + (size_t)n * chunks;
        for (u32 c = lane; c < chunks; c += LANES) {
            Words codes = load_streaming(row + c);
            u32 column = (c >> 1) * 8 + (c & 1u);
#pragma unroll
            for (int t = 0; t < TILE_T; t++) {
                if (t >= tokens) break;
                add_planes(acc[t], codes, q + (size_t)(first + t) * row_words + column);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILE_T; t++) {
        int dot = joined_planes(acc[t]);
        for (int d = LANES / 2; d > 0; d >>= 1) dot += shuffle_xor(dot, d);
        if (lane == 0 && n < outs && t < tokens) {
            float value = (float)(dot - qsum[first + t]) * scale[first + t] * wscale[n];
            size_t at = (size_t)(first + t) * y_stride + y_first + n;
            y[at] = ADD ? y[at] + value : value;
        }
    }
}
