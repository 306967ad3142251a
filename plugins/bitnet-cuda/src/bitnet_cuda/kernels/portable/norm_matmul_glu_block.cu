// norm_matmul_glu with block scales: m[t,n] = act(g) * u, with g and u the outputs n and outs + n of
// norm_matmul_block.cu; act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1).
// A block computes TILE_N rows of each half of W, in alternating groups of eight rows. TILE_T is 1.
#include "prelude.cuh"

#define ROWS (2 * TILE_N)
#include "block_few.cuh"
#include "norm_prologue.cuh"

KERNEL norm_matmul_glu(const float* x, const float* gamma, const Words* w, const float* wscale, float* m, u32 rows,
                       u32 columns, u32 outs, u32 width, float eps, const u8* ahead, u32 ahead_bytes) {
    __shared__ Words q[STEPS * WARPS * 16];
    __shared__ float partial[WARPS][16 * TILES], factors[STEPS * WARPS * 8], shares[WARPS];
    u32 n0 = blockIdx.x * TILE_N, n = n0 + threadIdx.x;
    size_t row = blockIdx.y;
    auto row_of = [=](u32 j) { return min(n0 + j / 16 * 8 + j % 8, outs - 1) + j / 8 % 2 * outs; };
    let_next_start();
    Codes codes;
    load_codes(codes, w, width, row_of);
    OneRow product;
    product.load(wscale, width, row_of);
    Prologue prologue;
    prologue.load_gamma(gamma);
    fetch_ahead(ahead, ahead_bytes);
    wait_for_previous();
    prologue.load_x(x + row * columns);
    float scale = prologue.quantized((u32*)q, factors, shares, eps);
    product.multiply(codes, q, ABLOCK ? factors : nullptr, partial[threadIdx.x / 32]);
    __syncthreads();
    if (threadIdx.x >= TILE_N || n >= outs) return;
    if (ABLOCK) scale = Prologue::norm_of(shares, eps);
    float gate = 0.0f, up = 0.0f;
    u32 at = threadIdx.x / 8 * 16 + threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        gate += partial[i][at];
        up += partial[i][at + 8];
    }
    gate *= scale, up *= scale;
    float r = fmaxf(gate, 0.0f), act = ACT == 0 ? r * r : gate / (1.0f + expf(-gate));
    m[row * outs + n] = is_nan(gate) ? gate : act * up;  // fmaxf drops NaN
}
