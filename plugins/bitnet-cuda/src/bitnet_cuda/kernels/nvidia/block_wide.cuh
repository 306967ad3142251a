// Products of prompts with one activation scale per 128 columns (ABLOCK 128; BLOCK 128 or 256), on Hopper's warpgroup
// tensor cores: out[n, t] = sum over blocks b of 128 columns of scale[t, 4 b] * wscale[n, 128 b / BLOCK] * (exact sum
// over the block of (code[n, k] - 1) * q[t, k]).
// Tiles and copies are those of stream.cuh, with PARTS parts of the weights. I2_S blocks are the A fragments
// (matmul_ternary_mma.cu), unpacked into registers as 64 * (code - 1).
#include "tensor.cuh"
#define CODE "s8"
#include "warpgroup.cuh"
#define EXTRA 128  // words per column block: activation scales and weight scales
#include "stream.cuh"
#define COPYING 96  // threads that copy scales
#define MORE (WARPGROUPS == 2 ? 232 : 160)  // registers of multiplying threads
#define FEWER (WARPGROUPS == 2 ? 40 : 32)

// The copies that one thread starts for all: every column block of the tiles of this thread block.
__device__ inline void copy_tiles(const Work& work, Words* stages, Barrier* full, Barrier* empty, const TensorMap& weights,
                                  const TensorMap& tokens, u32 outs) {
    Ring at = {0, 1};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z)
        for (u32 b = 0; b < work.blocks; b++, at.step()) {
            barrier_wait(empty + at.stage, at.phase);
            copy_block(work, stages + at.stage * STAGE, weights, tokens, tile, b, 0, full + at.stage, outs);
        }
}

// The scales that COPYING threads copy, four column blocks at a time, which are neighbours in device memory. Activation
// scales are stored in the order in which a lane reads four.
struct Scales {
    const float *scale, *wscale;
    u32 rows, outs, of_row;  // outs: rows of a part of the weights; of_row: scales of a row

    // Copies this thread's share of column block b, one of four.
    __device__ void copy(const Work& work, float* to, u32 tile, u32 b, u32 first) const {
        u32 t = work.first_t(tile), n = work.first_n(tile), last_t = rows - 1 - t, last_n = outs - 1 - n;
        const float* of_token = scale + ((size_t)t * work.blocks + b) * 4;
        const float* of_weights = wscale + (size_t)n * of_row + b * 128 / BLOCK;
#pragma unroll 2
        for (u32 i = first; i < SPAN_T; i += COPYING / 4)
            copy_async_word(to + (i / 16 * 16 + i % 8 / 2 * 4 + i % 16 / 8 * 2 + i % 2), of_token + min(i, last_t) * work.blocks * 4);
#pragma unroll 2
        for (u32 i = first; i < PARTS * SPAN_N; i += COPYING / 4)
            copy_async_word(to + SPAN_T + i, of_weights + (size_t)(i / SPAN_N * outs + min(i % SPAN_N, last_n)) * of_row);
    }
    __device__ void copy_tiles(const Work& work, Words* stages, Barrier* full, Barrier* empty, u32 thread) const {
        Ring at = {0, 1};
        u32 mine = thread % 4;
        for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z)
            for (u32 b = 0; b < work.blocks; b += 4) {
                u32 count = min(4u, work.blocks - b);
                Ring next = at;
                for (u32 i = 0; i < count; i++, next.step()) barrier_wait(empty + next.stage, next.phase);
                Words* stage = stages + (at.stage + mine) % STAGES * STAGE;
                if (mine < count) copy(work, (float*)(stage + FACTORS), tile, b + mine, thread / 4);
                for (u32 i = 0; i < count; i++, at.step()) barrier_arrive_copied(full + at.stage);
            }
    }
};

struct alignas(8) Pair {
    float low, high;  // of neighbouring rows, which are g and g + 8 of a fragment
};

struct Multiplier {
    Words* stages;
    Barrier *full, *empty;
    u32 lane_codes;  // first word of this lane in a stage's weights
    u32 x;           // which half of its rows' words lies first
    u32 own;         // this lane's first row of a tile
    Ring at;

    // Unpacks the words of 64 rows, piece m of this warpgroup's, each into four planes of 64 * (code - 1).
    __device__ void unpack(u32 (*a)[4], const Words* stage, int m) const {
        const u32* codes = (const u32*)(stage + WEIGHTS) + lane_codes + m % ROW_TILES * 128 + m / ROW_TILES * SPAN_N * 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 packed = codes[i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
            packed = ~(packed | (packed << 1 & 0xaaaaaaaau));  // each pair of bits less 1
#pragma unroll
            for (int p = 0; p < 4; p++) a[p][i] = settled(packed << (2 * p) & 0xc0c0c0c0u);
        }
    }
    __device__ void multiply(int* sums, u32 (*a)[4], const Words* tokens) const {
        warpgroup_arrive();
#pragma unroll
        for (int p = 0; p < 4; p++) warpgroup_mma(sums, a[p], tokens, p, p);
        warpgroup_commit();
        warpgroup_wait<0>();
    }
    // acc += sums times their scales.
    __device__ void weigh(float* acc, const int* sums, const Words* factors, int m) const {
        const Floats* of_tokens = (const Floats*)factors + threadIdx.x % 4;
        Pair of_rows = *(const Pair*)((const float*)factors + SPAN_T + own + m % ROW_TILES * 2 + m / ROW_TILES * SPAN_N);
        float of_row[2] = {of_rows.low * (1.0f / 64.0f), of_rows.high * (1.0f / 64.0f)};
#pragma unroll
        for (int i = 0; i < SPAN_T / 16; i++) {
            Floats f = of_tokens[4 * i];
            float factor[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                acc[8 * i + j] += (float)sums[8 * i + j] * of_row[j % 4 / 2] * factor[j / 4 * 2 + j % 2];
            }
        }
    }
    __device__ void tile(float (*acc)[SPAN_T / 2], u32 blocks) {
#pragma unroll
        for (int i = 0; i < M_TILES * SPAN_T / 2; i++) acc[i / (SPAN_T / 2)][i % (SPAN_T / 2)] = 0.0f;
        for (u32 b = 0; b < blocks; b++, at.step()) {
            const Words* stage = stages + at.stage * STAGE;
            barrier_wait(full + at.stage, at.phase);
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                u32 a[4][4];
                int sums[SPAN_T / 2];
                unpack(a, stage, m);
                multiply(sums, a, stage);
                weigh(acc[m], sums, stage + FACTORS, m);
            }
            sync_warp();
            if (threadIdx.x % 32 == 0) barrier_arrive(empty + at.stage);
        }
    }
};

// Computes all tiles of this thread block. store(acc, n, t): n, t: a lane's first row and token.
template <class Store>
__device__ inline void wide_tiles(const float* wscale, const float* scale, u32 rows, u32 outs, u32 width, const TensorMap& weights,
                                  const TensorMap& tokens, Store store) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES];
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    Work work = work_of(rows, outs, width);
    start_barriers(full, empty, 1 + COPYING);
    if (warp >= 4 * WARPGROUPS) {
        fewer_registers<FEWER>();
        u32 thread = threadIdx.x - 128 * WARPGROUPS;
        Scales scales = {scale, wscale, rows, outs, (width + BLOCK - 1) / BLOCK};
        if (thread == 0) copy_tiles(work, stages, full, empty, weights, tokens, outs);
        if (thread >= 128 - COPYING) scales.copy_tiles(work, stages, full, empty, thread - (128 - COPYING));
        return;
    }
    more_registers<MORE>();
    u32 n_warp = warp * 16 * ROW_TILES, own = n_warp + OWN * g;
    Multiplier multiplier = {stages, full, empty, (n_warp + g) * 8 + t, g / 4, own, {0, 0}};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        float acc[M_TILES][SPAN_T / 2];
        multiplier.tile(acc, work.blocks);
        store(acc, work.first_n(tile) + own, work.first_t(tile) + 2 * t);
    }
}
