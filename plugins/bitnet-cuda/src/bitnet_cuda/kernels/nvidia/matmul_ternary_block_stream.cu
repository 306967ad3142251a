// matmul_ternary_block on Hopper's warpgroup tensor cores (compute capability 9.0), for prompts:
// y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a] * (sum over the 32 columns of a of (code[n, k] - 1) * q[t, k]), or
// with scale[t] behind the sum where ABLOCK is 0; w[outs, width / 4], q[rows, width]. Tiles and copies are those of
// stream.cuh, with 64 rows of weights for each warpgroup. Each plane, 32 columns, has exact sums of its own: a warpgroup
// starts the four of a column block at once and then scales them, while the tensor cores work for the other warpgroup.
#include "prelude.cuh"
#include "tensor.cuh"
#include "signs.cuh"
#define CODE "s8"
#include "warpgroup.cuh"

#define HALVES (BLOCK == 64 ? 2 : 1)    // scales of a row of weights for 128 columns
#define EXTRA (ABLOCK ? SPAN_T : 0)     // of each token the four scales of a column block
#include "stream.cuh"

__device__ inline void copy_tiles(const Work& work, Words* stages, Barrier* full, Barrier* empty, const TensorMap& weights,
                                  const TensorMap& tokens, const TensorMap& scales) {
    Ring at = {0, 1};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z)
        for (u32 b = 0; b < work.blocks; b++, at.step()) {
            Words* stage = stages + at.stage * STAGE;
            barrier_wait(empty + at.stage, at.phase);
            copy_block(work, stage, weights, tokens, tile, b, 16 * EXTRA, full + at.stage);
            if (ABLOCK) copy_box(stage + FACTORS, scales, b * 16, work.first_t(tile), full + at.stage);
        }
}

struct Multiplier {
    Words* stages;
    Barrier *full, *empty;
    const float* wscale;
    u32 outs, blocks, lane_codes, x, t;  // lane_codes: word of a stage's weights where this lane's begin; x: which half first
    Ring at;

    // The sums of a column block, plane by plane.
    __device__ void multiply(int (*sums)[SPAN_T / 2]) const {
        const Words* tokens = stages + at.stage * STAGE;
        const u32* codes = (const u32*)(tokens + WEIGHTS) + lane_codes;
        u32 packed[4], a[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) packed[i] = codes[i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
#pragma unroll
        for (int i = 0; i < 16; i++) a[i / 4][i % 4] = signs(packed[i % 4], i / 4);
        warpgroup_arrive();
#pragma unroll
        for (int s = 0; s < 4; s++) warpgroup_mma(sums[s], a[s], tokens, s, false);
        warpgroup_commit();
        warpgroup_wait<0>();
    }
    // acc += them, scaled.
    __device__ void scale(float* acc, int (*sums)[SPAN_T / 2], const float (*weights)[HALVES]) const {
        const Floats* factors = (const Floats*)(stages + at.stage * STAGE + FACTORS) + 2 * t;
#pragma unroll
        for (int i = 0; i < SPAN_T / 2; i++) {
            Floats f = ABLOCK ? factors[i / 4 * 8 + i % 2] : Floats{1.0f, 1.0f, 1.0f, 1.0f};
            const float* weight = weights[i % 4 / 2];
            float low = (float)sums[0][i] * f.x + (float)sums[1][i] * f.y;
            if (HALVES == 2) {
                acc[i] += weight[0] * low;
                acc[i] += weight[HALVES - 1] * ((float)sums[2][i] * f.z + (float)sums[3][i] * f.w);
            } else {
                acc[i] += weight[0] * (low + (float)sums[2][i] * f.z + (float)sums[3][i] * f.w);
            }
        }
    }
    __device__ void tile(float* acc, u32 n) {
        const float* scales[OWN];  // of this lane's rows
        float weights[OWN][HALVES], coming[OWN][HALVES];
        auto load = [&](u32 block) {
#pragma unroll
            for (int i = 0; i < OWN * HALVES; i++)
                coming[i / HALVES][i % HALVES] = scales[i / HALVES][(block * 128 + i % HALVES * 64) / BLOCK];
        };
#pragma unroll
        for (int i = 0; i < SPAN_T / 2; i++) acc[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < OWN; i++) scales[i] = wscale + (size_t)min(n + i, outs - 1) * ((blocks * 128 + BLOCK - 1) / BLOCK);
        load(0);
        for (u32 b = 0; b < blocks; b++, at.step()) {
            int sums[4][SPAN_T / 2];
#pragma unroll
            for (int i = 0; i < OWN * HALVES; i++) weights[i / HALVES][i % HALVES] = coming[i / HALVES][i % HALVES];
            load(min(b + 1, blocks - 1));
            barrier_wait(full + at.stage, at.phase);
            multiply(sums);
            scale(acc, sums, weights);
            sync_warp();
            if (threadIdx.x % 32 == 0) barrier_arrive(empty + at.stage);
        }
    }
};

// y (+)= acc: a lane's rows n.. of tokens first, first + 1, first + 8, ..
__device__ inline void store(float* y, const float* acc, const float* scale, u32 y_stride, u32 n, u32 outs, u32 first, u32 rows) {
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
                         const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens,
                         const __grid_constant__ TensorMap scales) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES];
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    Work work = work_of(rows, outs, width);
    start_barriers(full, empty);
    if (warp >= 4 * WARPGROUPS) {
        fewer_registers<24>();
        if (threadIdx.x == 128 * WARPGROUPS) copy_tiles(work, stages, full, empty, weights, tokens, scales);
        return;
    }
    more_registers<240>();
    Multiplier multiplier = {stages, full, empty, wscale, outs, work.blocks, (warp * 16 + g) * 8 + t, g / 4, t, {0, 0}};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        u32 n = work.first_n(tile) + warp * 16 + OWN * g;
        float acc[SPAN_T / 2];
        multiplier.tile(acc, n);
        store(y + y_first, acc, scale, y_stride, n, outs, work.first_t(tile) + 2 * t, rows);
    }
}
