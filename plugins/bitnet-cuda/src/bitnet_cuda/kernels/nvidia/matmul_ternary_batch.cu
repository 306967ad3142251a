// matmul_ternary for batches of up to TILE_T rows, eight at a time (ternary_few.cuh): y[t, n] (+)= (sum_k code[n,k]
// q[t,k] - qsum[t]) * scale[t] * wscale[n].
// A block computes TILE_N outputs of all rows; its weights stay in registers while activations are loaded from the L2
// cache.
#include "prelude.cuh"

#define ROWS TILE_N
#include "ternary_few.cuh"

KERNEL matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* y,
                      u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ int partial[WARPS][TILE_T][TILE_N];
    u32 n0 = blockIdx.x * TILE_N, first = blockIdx.y * TILE_T, tokens = min((u32)TILE_T, rows - first);
    let_next_start();
    Codes codes;
    load_codes(codes, w, width, [=](u32 j) { return min(n0 + j, outs - 1); });
    wait_for_previous();
#pragma unroll
    for (int m = 0; m < TILE_T; m += 8)
        if (m < tokens)
            multiply(codes, q + (size_t)(first + m) * (width / 16), width / 16, tokens - m, width,
                     partial[threadIdx.x / 32][m]);
    __syncthreads();
    for (u32 at = threadIdx.x; at < tokens * TILE_N; at += GROUP) {
        u32 token = at / TILE_N, n = n0 + at % TILE_N, row = first + token;
        if (n >= outs) continue;
        int sum = -qsum[row];
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += partial[i][token][at % TILE_N];
        float value = (float)sum * scale[row] * wscale[n];
        size_t to = (size_t)row * y_stride + y_first + n;
        y[to] = ADD ? y[to] + value : value;
    }
}
