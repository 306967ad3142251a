// y[t, y_first + n] (+)= (sum_k code[n,k] q[k] - sum_k q[k]) * scale * wscale[n], with q and scale from row t of x,
// normed and quantized. Every block norms and quantizes the row itself (norm_prologue.cuh); the product is that of
// ternary_few.cuh. TILE_T is 1.
#include "prelude.cuh"

#define ROWS TILE_N
#include "ternary_few.cuh"
#include "norm_prologue.cuh"

KERNEL norm_matmul(const float* x, const float* gamma, const Words* w, const float* wscale, float* y, u32 rows,
                   u32 columns, u32 outs, u32 width, u32 y_stride, u32 y_first, float eps, const u8* ahead,
                   u32 ahead_bytes) {
    __shared__ Words q[STEPS * WARPS * 16];
    __shared__ int partial[WARPS][16 * TILES], sums[WARPS];
    u32 n0 = blockIdx.x * TILE_N, n = n0 + threadIdx.x;
    size_t row = blockIdx.y;
    let_next_start();
    Codes codes;
    load_codes(codes, w, width, [=](u32 j) { return min(n0 + j, outs - 1); });
    Prologue prologue;
    prologue.load_gamma(gamma);
    bool mine = threadIdx.x < TILE_N && n < outs;
    float weight_scale = mine ? wscale[n] : 0.0f;
    fetch_ahead(ahead, ahead_bytes);
    wait_for_previous();
    prologue.load_x(x + row * columns);
    float old = mine && ADD ? y[row * y_stride + y_first + n] : 0.0f;
    float scale = prologue.quantize((u32*)q, sums, eps);
    multiply_row(codes, q, width, partial[threadIdx.x / 32]);
    __syncthreads();
    if (!mine) return;
    int dot = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) dot += partial[i][threadIdx.x] - sums[i];
    float value = (float)dot * scale * weight_scale;
    y[row * y_stride + y_first + n] = ADD ? old + value : value;
}
