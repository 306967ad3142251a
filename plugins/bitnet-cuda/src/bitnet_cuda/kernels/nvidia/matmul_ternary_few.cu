// matmul_ternary for up to eight rows (ternary_few.cuh): y[t, n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] *
// wscale[n]. A block computes TILE_N outputs of all rows. LATE: as in quantize.cuh.
#include "prelude.cuh"

#define ROWS TILE_N
#include "ternary_few.cuh"

#define PER_THREAD ((TILE_N * 8 + GROUP - 1) / GROUP)

KERNEL matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* y,
                      u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ int partial[WARPS][8][16 * TILES];
    u32 n0 = blockIdx.x * TILE_N;
    if (!LATE) let_next_start();
    Codes codes;
    load_codes(codes, w, width, [=](u32 j) { return min(n0 + j, outs - 1); });
    float old[PER_THREAD], factor[PER_THREAD], weight_scale[PER_THREAD];
#pragma unroll
    for (int e = 0; e < PER_THREAD; e++) weight_scale[e] = wscale[min(n0 + (e * GROUP + threadIdx.x) % TILE_N, outs - 1)];
    wait_for_previous();
    if (LATE) let_next_start();
    int sum[PER_THREAD];
#pragma unroll
    for (int e = 0; e < PER_THREAD; e++) {
        u32 at = e * GROUP + threadIdx.x, token = at / TILE_N, n = n0 + at % TILE_N;
        bool used = token < rows && n < outs;
        old[e] = used && ADD ? y[(size_t)token * y_stride + y_first + n] : 0.0f;
        factor[e] = used ? scale[token] : 0.0f;
        sum[e] = used ? -qsum[token] : 0;
    }
    multiply(codes, q, width / 16, rows, width, partial[threadIdx.x / 32][0]);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < PER_THREAD; e++) {
        u32 at = e * GROUP + threadIdx.x, token = at / TILE_N, n = n0 + at % TILE_N;
        if (token >= rows || n >= outs) continue;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum[e] += partial[i][token][at % TILE_N];
        float value = (float)sum[e] * factor[e] * weight_scale[e];
        y[(size_t)token * y_stride + y_first + n] = ADD ? old[e] + value : value;
    }
}
