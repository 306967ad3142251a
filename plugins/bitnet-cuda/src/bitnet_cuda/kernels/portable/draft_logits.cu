// logits[l,n] = scale[n] * sum_k codes[n,k] x[l,k], f32 sums; bound[l,g] = the largest logits[l,n] - error[n] |x[l]| of the
// TILE_N = 64 rows n of group g, NaN if one of these is not finite. A block makes a group, each of its warps OUTS of its rows,
// four columns of each a lane, for TILE_T rows of x.
#include "prelude.cuh"
#include "length.cuh"

#define WARPS (GROUP / 32)
#define OUTS (TILE_N / WARPS)

__device__ inline Floats four_codes(u32 word) {
    return {(float)(signed char)word, (float)(signed char)(word >> 8), (float)(signed char)(word >> 16),
            (float)(signed char)(word >> 24)};
}

KERNEL draft_logits(const float* x, const u32* codes, const float* scale, const float* error, float* logits, float* bound,
                    u32 rows, u32 outs, u32 width, u32 stride) {
    __shared__ float lowest[TILE_T][TILE_N];
    u32 lane = threadIdx.x % 32, n0 = threadIdx.x / 32 * OUTS, group = blockIdx.x, first = blockIdx.y * TILE_T;
    u32 words = width / 4, base = group * TILE_N + n0;
    float acc[OUTS][TILE_T];
#pragma unroll
    for (int i = 0; i < OUTS * TILE_T; i++) acc[i / TILE_T][i % TILE_T] = 0.0f;
    let_next_start();
    bool waited = false;
#pragma unroll 2
    for (u32 k = lane; k < words; k += 32) {
        u32 packed[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) packed[o] = codes[(size_t)min(base + o, outs - 1) * words + k];
        if (!waited) wait_for_previous();
        waited = true;
        Floats in[TILE_T];
#pragma unroll
        for (int t = 0; t < TILE_T; t++) in[t] = ((const Floats*)x)[(size_t)min(first + t, rows - 1) * words + k];
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            Floats c = four_codes(packed[o]);
#pragma unroll
            for (int t = 0; t < TILE_T; t++) acc[o][t] += c.x * in[t].x + c.y * in[t].y + c.z * in[t].z + c.w * in[t].w;
        }
    }
    if (!waited) wait_for_previous();
#pragma unroll
    for (int t = 0; t < TILE_T; t++) {
        if (first + t >= rows) break;
        float length = length_of(x + (size_t)(first + t) * width, width);
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            float sum = warp_sum(acc[o][t]);
            if (lane != 0) continue;
            u32 n = base + o;
            float draft = n < outs ? sum * scale[n] : 0.0f;
            lowest[t][n0 + o] = n < outs ? draft - error[n] * length : minus_infinity();
            if (n < outs) logits[(size_t)(first + t) * stride + n] = draft;
        }
    }
    __syncthreads();
    u32 t = threadIdx.x, count = min((u32)TILE_N, outs - group * TILE_N), groups = (outs + TILE_N - 1) / TILE_N;
    if (t >= TILE_T || first + t >= rows) return;
    float best = minus_infinity();
    for (u32 i = 0; i < count; i++) best = not_finite(lowest[t][i]) || is_nan(best) ? quiet_nan() : fmaxf(best, lowest[t][i]);
    bound[(size_t)(first + t) * groups + group] = best;
}
