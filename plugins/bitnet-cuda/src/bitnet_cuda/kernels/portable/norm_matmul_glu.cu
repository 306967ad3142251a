// m[t,n] = act(g) * u with g = W[n] . y and u = W[outs + n] . y, with y = row t of x, normed and quantized as in
// norm_matmul; act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1).
// A block computes TILE_N rows of each half of W, in alternating groups of eight rows. TILE_T is 1.
#include "prelude.cuh"

#define ROWS (2 * TILE_N)
#include "ternary_few.cuh"
#include "norm_prologue.cuh"

KERNEL norm_matmul_glu(const float* x, const float* gamma, const Words* w, const float* wscale, float* m, u32 rows,
                       u32 columns, u32 outs, u32 width, float eps, const u8* ahead, u32 ahead_bytes) {
    __shared__ Words q[STEPS * WARPS * 16];
    __shared__ int partial[WARPS][16 * TILES], sums[WARPS];
    u32 n0 = blockIdx.x * TILE_N, n = n0 + threadIdx.x;
    size_t row = blockIdx.y;
    let_next_start();
    Codes codes;
    load_codes(codes, w, width, [=](u32 j) { return min(n0 + j / 16 * 8 + j % 8, outs - 1) + j / 8 % 2 * outs; });
    Prologue prologue;
    prologue.load_gamma(gamma);
    bool mine = threadIdx.x < TILE_N && n < outs;
    float gate_scale = mine ? wscale[n] : 0.0f, up_scale = mine ? wscale[outs + n] : 0.0f;
    fetch_ahead(ahead, ahead_bytes);
    wait_for_previous();
    prologue.load_x(x + row * columns);
    float scale = prologue.quantize((u32*)q, sums, eps);
    multiply_row(codes, q, width, partial[threadIdx.x / 32]);
    __syncthreads();
    if (!mine) return;
    int gate_dot = 0, up_dot = 0;
    u32 at = threadIdx.x / 8 * 16 + threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        gate_dot += partial[i][at] - sums[i];
        up_dot += partial[i][at + 8] - sums[i];
    }
    float gate = (float)gate_dot * scale * gate_scale, up = (float)up_dot * scale * up_scale, r = fmaxf(gate, 0.0f);
    float act = ACT == 0 ? r * r : gate / (1.0f + expf(-gate));
    m[row * outs + n] = is_nan(gate) ? gate : act * up;  // fmaxf drops NaN
}
