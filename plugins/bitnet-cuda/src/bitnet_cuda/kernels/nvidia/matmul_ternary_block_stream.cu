// matmul_ternary_block on Hopper's warpgroup tensor cores (compute capability 9.0), for prompts:
// y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a] * (sum over the 32 columns of a of (code[n, k] - 1) * q[t, k]), or
// with scale[t] behind the sum where ABLOCK is 0; w[outs, width / 4], q[rows, width]. Tiles and copies are those of
// stream.cuh, with 64 rows of weights for each warpgroup. Each plane, 32 columns, has exact sums of its own; those of planes
// 0 and 1 are scaled while the tensor cores work on planes 2 and 3, and for the other warpgroup.
#include "prelude.cuh"
#include "tensor.cuh"
#include "signs.cuh"
#define CODE "s8"
#include "warpgroup.cuh"

#define HALVES (BLOCK == 64 ? 2 : 1)   // scales of a row of weights for 128 columns
#define PITCH (SPAN_T / 4 + 4)         // scales of the tokens that a lane has, and a gap: no two lanes meet in a bank
#define EXTRA (ABLOCK ? 128 : 0)        // 4 * PITCH are scales of the activations, of each plane by lane, then by token
#include "stream.cuh"

// One thread for each token copies its four scales of a column block.
__device__ inline void copy_scales(const Work& work, Words* stages, Barrier* full, Barrier* empty, const float* scale,
                                   u32 rows) {
    u32 token = threadIdx.x % 128 - 32, place = token % 8 / 2 * PITCH + token / 8 * 2 + token % 2;
    Ring at = {0, 1};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        const float* from = scale + (size_t)min(work.first_t(tile) + token, rows - 1) * work.blocks * 4;
        for (u32 b = 0; b < work.blocks; b++, at.step()) {
            barrier_wait(empty + at.stage, at.phase);
            float* to = (float*)(stages + at.stage * STAGE + FACTORS) + place;
#pragma unroll
            for (u32 s = 0; s < 4; s++) copy_async_word(to + s * 4 * PITCH, from + 4 * b + s);
            barrier_arrive_with_copies(full + at.stage);
        }
    }
}

__device__ inline void copy_tiles(const Work& work, Words* stages, Barrier* full, Barrier* empty, const TensorMap& weights,
                                  const TensorMap& tokens) {
    Ring at = {0, 1};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z)
        for (u32 b = 0; b < work.blocks; b++, at.step()) {
            barrier_wait(empty + at.stage, at.phase);
            copy_block(work, stages + at.stage * STAGE, weights, tokens, tile, b, 0, full + at.stage);
        }
}

struct Multiplier {
    Words* stages;
    Barrier *full, *empty;
    const float* wscale;
    u32 outs, blocks, t;
    u32 lane_codes, x;  // word of a stage's weights where this lane's begin, and which half of its rows' words lies first
    Ring at;
    u32 packed[4], a[2][2][4];
    int sums[2][2][SPAN_T / 2];  // of planes 0 and 1, of planes 2 and 3

    __device__ void load_codes() {
        const u32* codes = (const u32*)(stages + at.stage * STAGE + WEIGHTS) + lane_codes;
#pragma unroll
        for (int i = 0; i < 4; i++) packed[i] = codes[i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
    }
    // The products of two planes.
    __device__ void start(int pair) {
#pragma unroll
        for (int i = 0; i < 8; i++) a[pair][i / 4][i % 4] = signs(packed[i % 4], 2 * pair + i / 4);
        warpgroup_arrive();
#pragma unroll
        for (int s = 0; s < 2; s++)
            warpgroup_mma(sums[pair][s], a[pair][s], stages + at.stage * STAGE, 2 * pair + s, false);
        warpgroup_commit();
    }
    // The compiler must not read sums before they have been waited for.
    __device__ void settle(int pair) {
#pragma unroll
        for (int i = 0; i < SPAN_T; i++) asm volatile("" : "+r"(sums[pair][i / (SPAN_T / 2)][i % (SPAN_T / 2)])::"memory");
    }
    // Both planes' sums, scaled; they end in acc, behind two pairs where these share a scale of weights.
    __device__ void scale(float* acc, float* part, int pair, const float (*weights)[HALVES]) const {
        const float* scales = (const float*)(stages + at.stage * STAGE + FACTORS);
        const Floats* factors = (const Floats*)(scales + t * PITCH) + 2 * pair * PITCH;
        const bool first = HALVES == 2 || pair == 0, last = HALVES == 2 || pair == 1;
#pragma unroll
        for (int i = 0; i < SPAN_T / 8; i += 2) {  // two groups of eight tokens
            const int *even = sums[pair][0] + 4 * i, *odd = sums[pair][1] + 4 * i;
            Floats f = ABLOCK ? factors[i / 2] : Floats{}, g = ABLOCK ? factors[PITCH + i / 2] : Floats{};
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float of_even = e < 4 ? (e % 2 ? f.y : f.x) : (e % 2 ? f.w : f.z);
                float of_odd = e < 4 ? (e % 2 ? g.y : g.x) : (e % 2 ? g.w : g.z), sum = first ? 0.0f : part[4 * i + e];
                if (ABLOCK) {
                    sum = first ? (float)even[e] * of_even : sum + (float)even[e] * of_even;
                    sum += (float)odd[e] * of_odd;
                } else {
                    sum += (float)(even[e] + odd[e]);
                }
                part[4 * i + e] = sum;
                if (last) acc[4 * i + e] += weights[e % 4 / 2][HALVES == 2 ? pair : 0] * sum;
            }
        }
    }
    __device__ void tile(float* acc, u32 n) {
        const float* scales[OWN];  // of this lane's rows
        float weights[OWN][HALVES], coming[OWN][HALVES], part[SPAN_T / 2];
        auto load = [&](u32 block) {
#pragma unroll
            for (int i = 0; i < OWN * HALVES; i++)
                coming[i / HALVES][i % HALVES] = scales[i / HALVES][(block * 128 + i % HALVES * 64) / BLOCK];
        };
#pragma unroll
        for (int i = 0; i < SPAN_T / 2; i++) acc[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < OWN; i++)
            scales[i] = wscale + (size_t)min(n + i, outs - 1) * ((blocks * 128 + BLOCK - 1) / BLOCK);
        load(0);
        for (u32 b = 0; b < blocks; b++, at.step()) {
#pragma unroll
            for (int i = 0; i < OWN * HALVES; i++) weights[i / HALVES][i % HALVES] = coming[i / HALVES][i % HALVES];
            load(min(b + 1, blocks - 1));
            barrier_wait(full + at.stage, at.phase);
            load_codes();
            start(0);
            start(1);
            warpgroup_wait<1>();
            settle(0);
            scale(acc, part, 0, weights);
            warpgroup_wait<0>();
            settle(1);
            scale(acc, part, 1, weights);
            sync_warp();
            if (threadIdx.x % 32 == 0) barrier_arrive(empty + at.stage);
        }
    }
};

// y (+)= acc: a lane's rows n.. of tokens first, first + 1, first + 8, ..
__device__ inline void store(float* y, const float* acc, const float* scale, u32 y_stride, u32 n, u32 outs, u32 first,
                             u32 rows) {
    if (n >= outs) return;
#pragma unroll
    for (int i = 0; i < SPAN_T / 8; i += 2) {  // what is added to is read for some at once
        Outs old[4];
#pragma unroll
        for (int e = 0; ADD && e < 4; e++) {
            u32 token = first + 8 * (i + e / 2) + e % 2;
            if (token < rows) old[e] = *(const Outs*)(y + (size_t)token * y_stride + n);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 token = first + 8 * (i + e / 2) + e % 2;
            if (token >= rows) continue;
            float factor = ABLOCK ? SIGN : SIGN * scale[token];
            Outs v;
#pragma unroll
            for (int r = 0; r < OWN; r++) v.v[r] = acc[4 * (i + e / 2) + 2 * r + e % 2] * factor + (ADD ? old[e].v[r] : 0.0f);
            *(Outs*)(y + (size_t)token * y_stride + n) = v;
        }
    }
}

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                         float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                         const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES];
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    Work work = work_of(rows, outs, width);
    start_barriers(full, empty, ABLOCK ? 1 + SPAN_T : 1);
    if (warp >= 4 * WARPGROUPS) {
        fewer_registers<32>();
        if (threadIdx.x == 128 * WARPGROUPS) copy_tiles(work, stages, full, empty, weights, tokens);
        if (ABLOCK && warp > 4 * WARPGROUPS && threadIdx.x < 128 * WARPGROUPS + 32 + SPAN_T)
            copy_scales(work, stages, full, empty, scale, rows);
        return;
    }
    more_registers<232>();
    Multiplier multiplier = {stages, full, empty, wscale, outs, work.blocks, t, (warp * 16 + g) * 8 + t, g / 4, {0, 0}, {}, {}, {}};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        u32 n = work.first_n(tile) + warp * 16 + OWN * g;
        float acc[SPAN_T / 2];
        multiplier.tile(acc, n);
        store(y + y_first, acc, scale, y_stride, n, outs, work.first_t(tile) + 2 * t, rows);
    }
}
