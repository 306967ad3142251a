// logits[l,n] = scale[n] * sum_k codes[n,k] x[l,k], f32 sums; bound[l,g] = max(logits[l,n] - error[n] |x[l]|) over the
// TILE_N = 64 rows n of group g, NaN if one of these is not finite.
// A block computes a group for one row of x. Each of its warps computes OUTS rows of the group; a lane loads four times
// WORDS columns of each. RESIDENT blocks fit on a multiprocessor.
#include "prelude.cuh"
#include "bounds.cuh"

#define WARPS (GROUP / 32)
#define OUTS (TILE_N / WARPS)

struct alignas(4 * WORDS) Piece {
    u32 word[WORDS];
};

KERNEL_RESIDENT(RESIDENT)
approx_logits(const Floats* x, const Piece* codes, const float* scale, const float* error, float* logits, float* bound,
             u32 rows, u32 outs, u32 width, u32 stride) {
    __shared__ u32 lowest[WARPS];  // order_of the largest lower bound of each warp
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = blockIdx.x, pieces = width / (4 * WORDS);
    u32 base = group * TILE_N + warp * OUTS, first = min(base, outs - 1);
    const Piece* start = codes + (size_t)first * pieces;
    float acc[OUTS] = {}, squares = 0.0f;
    let_next_start();
    for (u32 k = lane; k < pieces; k += 32) {
        Piece packed[OUTS];
#pragma unroll
        for (int o = 0; o < OUTS; o++) packed[o] = start[min((u32)o, outs - 1 - first) * pieces + k];
        if (k == lane) wait_for_previous();
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            Floats v = x[(size_t)blockIdx.y * (width / 4) + k * WORDS + i];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
            for (int o = 0; o < OUTS; o++) {
                u32 word = packed[o].word[i];
                acc[o] += signed_byte<0>(word) * v.x + signed_byte<1>(word) * v.y + signed_byte<2>(word) * v.z +
                          signed_byte<3>(word) * v.w;
            }
        }
    }
    if (lane >= pieces) wait_for_previous();
    u32 mine = min(base + lane % OUTS, outs - 1);
    float row_scale = scale[mine], row_error = error[mine], length = length_from(warp_sum(squares));
    float sum = 0.0f;
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
        float all = warp_sum(acc[o]);
        if (lane == o) sum = all;
    }
    float approx = sum * row_scale, low = approx - row_error * length;
    bool used = lane < OUTS && base + lane < outs;
    if (used) logits[(size_t)blockIdx.y * stride + base + lane] = approx;
    u32 best = warp_max_bits(!used ? 0 : not_finite(low) ? NOT_A_NUMBER : order_of(low));
    if (lane == 0) lowest[warp] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 0; i < WARPS; i++) best = max(best, lowest[i]);
    bound[(size_t)blockIdx.y * ((outs + TILE_N - 1) / TILE_N) + group] = number_of(best);
}
