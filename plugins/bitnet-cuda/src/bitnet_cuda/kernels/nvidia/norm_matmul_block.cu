// norm_matmul with block scales: y[t, y_first + n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[a] * (sum over the 32
// columns of a of (code[n,k] - 1) q[k]), with q and scale from row t of x, normed and quantized (one scale for the row
// with ABLOCK 0). Every block norms and quantizes the row itself (norm_prologue.cuh); the product is that of
// block_row.cuh. TILE_T is 1.
#include "prelude.cuh"

#define ROWS TILE_N
#include "block_row.cuh"
#include "norm_prologue.cuh"

KERNEL_RESIDENT(RESIDENT)
norm_matmul(const float* x, const float* gamma, const Words* w, const float* wscale, float* y, u32 rows, u32 columns,
            u32 outs, u32 width, u32 y_stride, u32 y_first, float eps, const u8* ahead, u32 ahead_bytes) {
    __shared__ Words q[STEPS * WARPS * 16];
    __shared__ float partial[WARPS][ROWS], factors[STEPS * WARPS * 8], shares[WARPS];
    u32 n0 = blockIdx.x * TILE_N, n = n0 + threadIdx.x;
    size_t row = blockIdx.y;
    bool mine = threadIdx.x < TILE_N && n < outs;
    float old = 0.0f, scale = 1.0f;
    let_next_start();
    Prologue prologue;
    prologue.load_gamma(gamma);
    auto row_of = [=](u32 j) { return min(n0 + j, outs - 1); };
    multiply_rows(w, wscale, partial, q, ABLOCK ? factors : nullptr, row_of, [&] {
        fetch_ahead(ahead, ahead_bytes);
        wait_for_previous();
        prologue.load_x(x + row * columns);
        if (mine && ADD) old = y[row * y_stride + y_first + n];
        scale = prologue.quantized((u32*)q, factors, shares, eps);
    });
    if (!mine) return;
    if (ABLOCK) scale = Prologue::norm_of(shares, eps);
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) value += partial[i][threadIdx.x];
    y[row * y_stride + y_first + n] = ADD ? old + value * scale : value * scale;
}
