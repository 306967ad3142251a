// logits[l,n] = scale[n] * sum_k codes[n,k] x[l,k], f32 sums; bound[l,g] = the largest logits[l,n] - error[n] |x[l]| of the
// TILE_N = 64 rows n of group g, NaN if one of these is not finite. A block makes a group, each of its warps OUTS of its rows,
// four times WORDS columns of each a lane, for TILE_T rows of x. RESIDENT blocks are to fit on a multiprocessor.
#include "prelude.cuh"
#include "bounds.cuh"

#define WARPS (GROUP / 32)
#define OUTS (TILE_N / WARPS)

struct alignas(4 * WORDS) Piece {
    u32 word[WORDS];
};

extern "C" __global__ void __launch_bounds__(GROUP, RESIDENT)
    draft_logits(const Floats* x, const Piece* codes, const float* scale, const float* error, float* logits, float* bound,
                 u32 rows, u32 outs, u32 width, u32 stride) {
    __shared__ u32 lowest[TILE_T][WARPS];  // order_of the drafts' lower bounds, the largest of a warp
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = blockIdx.x, first = blockIdx.y * TILE_T;
    u32 pieces = width / (4 * WORDS), base = group * TILE_N + warp * OUTS, mine = min(base + lane % OUTS, outs - 1);
    const Piece* start = codes + (size_t)min(base, outs - 1) * pieces;
    u32 last = outs - 1 - min(base, outs - 1);
    float acc[OUTS][TILE_T], squares[TILE_T];
#pragma unroll
    for (int i = 0; i < OUTS * TILE_T; i++) acc[i / TILE_T][i % TILE_T] = 0.0f;
#pragma unroll
    for (int t = 0; t < TILE_T; t++) squares[t] = 0.0f;
    let_next_start();
    bool waited = false;
    for (u32 k = lane; k < pieces; k += 32) {
        Piece packed[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) packed[o] = start[min((u32)o, last) * pieces + k];
        if (!waited) wait_for_previous();
        waited = true;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            Floats in[TILE_T];
#pragma unroll
            for (int t = 0; t < TILE_T; t++) {
                Floats v = in[t] = x[(size_t)min(first + t, rows - 1) * (width / 4) + k * WORDS + i];
                squares[t] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
#pragma unroll
            for (int o = 0; o < OUTS; o++) {
                u32 word = packed[o].word[i];
                float c[4] = {signed_byte<0>(word), signed_byte<1>(word), signed_byte<2>(word), signed_byte<3>(word)};
#pragma unroll
                for (int t = 0; t < TILE_T; t++)
                    acc[o][t] += c[0] * in[t].x + c[1] * in[t].y + c[2] * in[t].z + c[3] * in[t].w;
            }
        }
    }
    if (!waited) wait_for_previous();
    float row_scale = scale[mine], row_error = error[mine];
#pragma unroll
    for (int t = 0; t < TILE_T; t++) {
        float sum = 0.0f, length = length_from(warp_sum(squares[t]));
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            float all = warp_sum(acc[o][t]);
            if (lane == o) sum = all;
        }
        float draft = sum * row_scale, low = draft - row_error * length;
        bool used = lane < OUTS && base + lane < outs && first + t < rows;
        if (used) logits[(size_t)(first + t) * stride + base + lane] = draft;
        u32 order = warp_max_bits(!used ? 0 : not_finite(low) ? NOT_A_NUMBER : order_of(low));
        if (lane == 0) lowest[t][warp] = order;
    }
    __syncthreads();
    u32 t = threadIdx.x, best = 0;
    if (t >= TILE_T || first + t >= rows) return;
    for (int i = 0; i < WARPS; i++) best = max(best, lowest[t][i]);
    bound[(size_t)(first + t) * ((outs + TILE_N - 1) / TILE_N) + group] = number_of(best);
}
