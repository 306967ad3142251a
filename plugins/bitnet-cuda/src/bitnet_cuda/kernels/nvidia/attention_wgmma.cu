// attention for prompts on Hopper's warpgroup tensor cores (compute capability 9.0; f16 caches, 128 elements per head):
// out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t], with q and the weights as the sum of two
// f16 as in attention_mma.cu.
// A thread block computes TILE_T rows of the step and TILE_N query heads of one key/value head. Its two warpgroups have
// half of the rows each and read the same keys and values. With PAIRED, for few rows, both have all rows and every
// other block of positions each, and combine their results at the end. One thread keeps copies of STAGES blocks of 64
// positions in flight.
// Heads of 64 elements are not supported: the compiler (ptxas 13.0) assigns the queries' registers to the weights.
#include "prelude.cuh"
#include "tensor.cuh"
#include "barrier.cuh"
#include "halves.cuh"
#include "warpgroup_half.cuh"

#define HALF (KV_BLOCK * HEAD_DIM / 8)  // 16-byte words of a block's keys, or values
#define STAGE (2 * HALF)
#define K_STEPS (HEAD_DIM / 16)
#define ROWS (PAIRED ? TILE_T : TILE_T / 2)  // rows of a warpgroup
#define LOG2_E 1.44269504f

struct alignas(8) Pair {
    float a, b;
};

// joined: the second warpgroup's result is stored; tail: a warpgroup has cleared the rows past the last position.
struct Shared {
    Barrier full[STAGES], empty[STAGES], joined, tail[2];
    int positions[TILE_T], sequences[TILE_T];
};

// Neighbouring rows of one sequence, and the cache blocks that they read.
struct Run {
    u32 first, end;
    int longest;
    const int* table;

    __device__ u32 blocks() const { return longest < 0 ? 0 : (u32)longest / KV_BLOCK + 1; }
};
__device__ inline Run run_at(const Shared& s, u32 first, const int* tables, u32 max_blocks) {
    int sequence = s.sequences[first], longest = -1;
    u32 end = first;
    for (; end < TILE_T && s.sequences[end] == sequence; end++) longest = max(longest, s.positions[end]);
    return {first, end, longest, tables + (size_t)max(sequence, 0) * max_blocks};
}

__device__ inline float over_row(float v, bool largest) {  // over the four lanes that share a row of a fragment
    for (int d = 1; d < 4; d *= 2) {
        float other = shuffle_xor(v, d);
        v = largest ? fmaxf(v, other) : v + other;
    }
    return v;
}

// The copies that one thread starts for all, in rows of 128 bytes; a cache row has HEAD_DIM / 64 such rows.
__device__ inline void copy_blocks(Shared& s, Words* stages, const TensorMap& keys, const TensorMap& values, const int* tables,
                                   u32 max_blocks, u32 kv_heads, u32 kv_head) {
    u32 count = 0;
    for (u32 first = 0; first < TILE_T;) {
        Run run = run_at(s, first, tables, max_blocks);
        first = run.end;
        for (u32 b = 0; b < run.blocks(); b++, count++) {
            u32 stage = count % STAGES, row = (run.table[b] * kv_heads + kv_head) * KV_BLOCK;
            barrier_wait(s.empty + stage, 1 - count / STAGES % 2);
            barrier_expect(s.full + stage, 16 * STAGE);
            Words* to = stages + stage * STAGE;
            for (u32 i = 0; i < HEAD_DIM / 64; i++) copy_box(to + i * KV_BLOCK * 8, keys, 128 * i, row, s.full + stage);
            for (u32 i = 0; i < HEAD_DIM / 64; i++) copy_box(to + HALF + i * KV_BLOCK * 8, values, 128 * i, row, s.full + stage);
        }
    }
}

struct Queries {
    u32 high[K_STEPS][4], low[K_STEPS][4];
};

struct Attention {
    float acc[HEAD_DIM / 8][4], largest[2], total[2];

    // Turns s into the weights of 64 positions, times 2^-largest, and rescales the earlier sums to that.
    __device__ void weigh(float (*s)[4]) {
        float now[2] = {largest[0], largest[1]}, rescale[2];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) now[j / 2] = fmaxf(now[j / 2], s[n][j]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            now[i] = over_row(now[i], true);
            float base = now[i] == minus_infinity() ? 0.0f : now[i];
            rescale[i] = power_of_two(largest[i] - base);
            largest[i] = now[i];
            now[i] = base;
            total[i] *= rescale[i];
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[n][j] = power_of_two(s[n][j] - now[j / 2]);
                total[j / 2] += s[n][j];
            }
        if (any_lane(rescale[0] != 1.0f || rescale[1] != 1.0f))
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[n][j] *= rescale[j / 2];
    }
    // Adds the other warpgroup's result from shared memory.
    __device__ void put(float* to, float* sums) const {
#pragma unroll
        for (int i = 0; i < 2; i++) sums[128 * i] = largest[i], sums[128 * (2 + i)] = total[i];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) to[128 * i] = acc[i / 4][i % 4];
    }
    __device__ void add(const float* from, const float* sums) {
        float keep[2], other[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = fmaxf(sums[128 * i], largest[i]);
            top = top == minus_infinity() ? 0.0f : top;
            keep[i] = power_of_two(largest[i] - top), other[i] = power_of_two(sums[128 * i] - top);
            total[i] = total[i] * keep[i] + sums[128 * (2 + i)] * other[i];
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++)
            acc[i / 4][i % 4] = acc[i / 4][i % 4] * keep[i % 4 / 2] + from[128 * i] * other[i % 4 / 2];
    }
};

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    attention(const float* q, const Words* k_cache, const Words* v_cache, const Row* step, const int* tables, float* out,
              u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale,
              const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Shared s;
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    u32 first = ((rows + TILE_T - 1) / TILE_T - 1 - blockIdx.y) * TILE_T;  // long rows first
    u32 head = blockIdx.x * TILE_N + warp / (ROWS / 16), kv_head = blockIdx.x * TILE_N / (n_heads / n_kv_heads);
    u32 at = (PAIRED ? 0 : own * ROWS) + warp % (ROWS / 16) * 16;
    let_next_start();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(s.full + i, 1);
            barrier_init(s.empty + i, PAIRED ? 4 : 8);
        }
        barrier_init(&s.joined, 128);
        barrier_init(s.tail, 128);
        barrier_init(s.tail + 1, 128);
        show_barriers();
    }
    wait_for_previous();
    for (u32 i = threadIdx.x; i < TILE_T; i += GROUP) {
        bool used = first + i < rows;
        s.positions[i] = used ? step[first + i].position : -1;
        s.sequences[i] = used ? step[first + i].sequence : -1;
    }
    __syncthreads();
    if (own == 2) {
        fewer_registers<24>();
        if (threadIdx.x == 256) copy_blocks(s, stages, keys, values, tables, max_blocks, n_kv_heads, kv_head);
        return;
    }
    more_registers<240>();
    Queries of;
#pragma unroll
    for (int k = 0; k < K_STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 row = min(first + at + g + 8 * (i % 2), rows - 1);
            const Pair* from = (const Pair*)(q + ((size_t)row * n_heads + head) * HEAD_DIM + 16 * k + 8 * (i / 2) + 2 * t);
            float factor = scale * LOG2_E;  // scores in powers of two
            split_halves(from->a * factor, from->b * factor, of.high[k][i], of.low[k][i]);
        }
    Attention a = {{}, {minus_infinity(), minus_infinity()}, {0.0f, 0.0f}};
    u32 count = 0, before = STAGES, tails = 0;
    for (u32 next = 0; next < TILE_T;) {
        Run run = run_at(s, next, tables, max_blocks);
        next = run.end;
        int last[2];
        for (u32 i = 0; i < 2; i++) {
            u32 row = at + g + 8 * i;
            last[i] = row >= run.first && row < run.end ? s.positions[row] : -1;
        }
        int shallowest = -(int)warp_max((float)-min(last[0], last[1]));  // exact, since positions are far below 2^24
        for (u32 b = 0; b < run.blocks(); b++, count++) {
            if (PAIRED && count % 2 != own) continue;
            int start = (int)b * KV_BLOCK;
            u32 stage = count % STAGES, cached = (u32)run.longest + 1 - b * KV_BLOCK;
            Words *of_keys = stages + stage * STAGE, *of_values = of_keys + HALF;
            barrier_wait(s.full + stage, count / STAGES % 2);
            if (cached < KV_BLOCK) {  // rows past the last position may hold anything, NaN too
                for (u32 i = threadIdx.x % 128; i < (KV_BLOCK - cached) * (HEAD_DIM / 8); i += 128)
                    of_values[i % (HEAD_DIM / 64) * KV_BLOCK * 8 + cached * 8 + i / (HEAD_DIM / 64)] = Words{0, 0, 0, 0};
                show_to_tensor_cores();
                barrier_arrive(s.tail + own);
                barrier_wait(s.tail + own, tails++ % 2);
            }
            float w[8][4];
            warpgroup_arrive();
#pragma unroll
            for (int k = 0; k < K_STEPS; k++) {
                const Words* part = of_keys + k / 4 * KV_BLOCK * 8;
                warpgroup_mma_half<0>(w[0], of.low[k], part, 32 * (k % 4), k > 0);
                warpgroup_mma_half<0>(w[0], of.high[k], part, 32 * (k % 4), true);
            }
            warpgroup_commit();
            warpgroup_wait<0>();  // also for the values of the block before
            if (before < STAGES && lane == 0) barrier_arrive(s.empty + before);
            before = stage;
            if (start + KV_BLOCK - 1 > shallowest)
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        if (start + 8 * n + 2 * (int)t + j % 2 > last[j / 2]) w[n][j] = minus_infinity();
            a.weigh(w);
            u32 high[KV_BLOCK / 16][4], low[KV_BLOCK / 16][4];
#pragma unroll
            for (int i = 0; i < KV_BLOCK / 4; i++) {
                const float* pair = w[i / 2] + i % 2 * 2;
                split_halves(pair[0], pair[1], high[i / 4][i % 4], low[i / 4][i % 4]);
            }
            warpgroup_arrive();
#pragma unroll
            for (int k = 0; k < KV_BLOCK / 16; k++)
#pragma unroll
                for (int n = 0; n < HEAD_DIM / 64; n++) {
                    const Words* part = of_values + n * KV_BLOCK * 8;
                    warpgroup_mma_half<1>(a.acc[8 * n], low[k], part, 2048 * k, true);
                    warpgroup_mma_half<1>(a.acc[8 * n], high[k], part, 2048 * k, true);
                }
            warpgroup_commit();
        }
    }
    warpgroup_wait<0>();
    if (PAIRED) {  // the second warpgroup's stages are its own
        float *sums = (float*)(stages + STAGE) + threadIdx.x % 128, *tops = (float*)(stages + 3 * STAGE) + threadIdx.x % 128;
        if (own) {
            a.put(sums, tops);
            barrier_arrive(&s.joined);
            return;
        }
        barrier_wait(&s.joined, 0);
        a.add(sums, tops);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 in_tile = at + g + 8 * i, row = first + in_tile;
        float sum = over_row(a.total[i], false);
        if (row >= rows) continue;
        float factor = s.positions[in_tile] < 0 ? 0.0f : 1.0f / sum;
        Pair* to = (Pair*)(out + ((size_t)row * n_heads + head) * HEAD_DIM + 2 * t);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) to[4 * n] = Pair{a.acc[n][2 * i] * factor, a.acc[n][2 * i + 1] * factor};
    }
}
