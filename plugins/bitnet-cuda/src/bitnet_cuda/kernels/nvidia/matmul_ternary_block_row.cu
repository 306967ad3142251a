// matmul_ternary_block for one row (block_row.cuh): y[n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[a] * (sum over the
// 32 columns of a of (code[n,k] - 1) q[k]). A block computes TILE_N outputs.
#include "prelude.cuh"

#define ROWS TILE_N
#include "block_row.cuh"

KERNEL_RESIDENT(RESIDENT)
matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* y,
                     u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ Words codes[STEPS * WARPS * 16];
    __shared__ float partial[WARPS][ROWS], factors[STEPS * WARPS * 8];
    u32 n0 = blockIdx.x * TILE_N, n = n0 + threadIdx.x;
    auto row_of = [=](u32 j) { return min(n0 + j, outs - 1); };
    let_next_start();
    multiply_rows(w, wscale, partial, codes, ABLOCK ? factors : nullptr, row_of, [&] {
        wait_for_previous();
        for (u32 i = threadIdx.x; i < STEPS * WARPS * 16; i += GROUP)
            codes[i] = i < WIDTH / 16 ? q[i] : Words{0, 0, 0, 0};
        for (u32 i = threadIdx.x; ABLOCK && i < STEPS * WARPS * 8; i += GROUP)
            factors[i] = i < WIDTH / 32 ? scale[i] : 0.0f;
        __syncthreads();
    });
    if (threadIdx.x >= TILE_N || n >= outs) return;
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) value += partial[i][threadIdx.x];
    if (!ABLOCK) value *= scale[0];
    y[y_first + n] = ADD ? y[y_first + n] + value : value;
}
