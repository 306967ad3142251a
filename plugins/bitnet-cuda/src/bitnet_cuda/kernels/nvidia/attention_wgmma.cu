// attention for prompts, on Hopper's warpgroup tensor cores (compute capability 9.0; f16 caches, 128 elements a head).
// out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t]: attention_mma.cu in warpgroup products, with
// q and the weights as the sum of two f16 here too. A thread block takes TILE_T rows of the step and TILE_N query heads of
// one key/value head, 16 rows of a head for each warp; all of them read the same keys and values from shared memory. Three
// blocks of 64 positions take turns there: one comes in, one is multiplied, and the values of the one before still are.
// Not for heads of 64: the compiler (ptxas 13.0) then gives the queries' registers to the weights.
#include "prelude.cuh"
#include "tensor.cuh"
#include "halves.cuh"
#include "warpgroup_half.cuh"

#define CHUNKS (HEAD_DIM / 8)          // 16-byte words of a cache row
#define STAGE (2 * KV_BLOCK * CHUNKS)  // the same of one block: keys, then values
#define STAGES 3
#define K_STEPS (HEAD_DIM / 16)
#define LOG2_E 1.44269504f

struct alignas(8) Pair {
    float a, b;
};

// Rows of 128 bytes, swizzled as the tensor cores want them; a cache row lies in HEAD_DIM / 64 such rows.
__device__ inline u32 word_of(u32 row, u32 chunk) { return (chunk / 8 * KV_BLOCK + row) * 8 + (chunk ^ row) % 8; }

__device__ inline void load_block(Words* stage, const Words* keys, const Words* values, size_t block, u32 count) {
    for (u32 i = threadIdx.x; i < KV_BLOCK * CHUNKS; i += GROUP) {
        u32 row = i / CHUNKS, to = word_of(row, i % CHUNKS);
        bool wanted = row < count;  // what lies behind may be anything, NaN too
        copy_async_or_zero(stage + to, keys + block * CHUNKS + i, wanted);
        copy_async_or_zero(stage + KV_BLOCK * CHUNKS + to, values + block * CHUNKS + i, wanted);
    }
}

__device__ inline float over_row(float v, bool largest) {  // the four lanes that share a row of a fragment
    for (int d = 1; d < 4; d *= 2) {
        float other = shuffle_xor(v, d);
        v = largest ? fmaxf(v, other) : v + other;
    }
    return v;
}

extern "C" __global__ void __launch_bounds__(GROUP, 2)
    attention(const float* q, const Words* k_cache, const Words* v_cache, const Row* step, const int* tables, float* out,
              u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale) {
    DYNAMIC_SHARED(Words, pool);
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    __shared__ int positions[TILE_T], sequences[TILE_T];
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    u32 first = ((rows + TILE_T - 1) / TILE_T - 1 - blockIdx.y) * TILE_T;  // long rows first
    u32 head = blockIdx.x * TILE_N + warp / (TILE_T / 16), kv_head = head / (n_heads / n_kv_heads);
    u32 at = warp % (TILE_T / 16) * 16;
    let_next_start();
    wait_for_previous();
    for (u32 i = threadIdx.x; i < TILE_T; i += GROUP) {
        bool used = first + i < rows;
        positions[i] = used ? step[first + i].position : -1;
        sequences[i] = used ? step[first + i].sequence : -1;
    }
    u32 q_high[K_STEPS][4], q_low[K_STEPS][4];
#pragma unroll
    for (int k = 0; k < K_STEPS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 row = min(first + at + g + 8 * (i % 2), rows - 1);
            const Pair* from = (const Pair*)(q + ((size_t)row * n_heads + head) * HEAD_DIM + 16 * k + 8 * (i / 2) + 2 * t);
            float factor = scale * LOG2_E;  // scores in powers of two
            split_halves(from->a * factor, from->b * factor, q_high[k][i], q_low[k][i]);
        }
    float acc[HEAD_DIM / 8][4], largest[2] = {minus_infinity(), minus_infinity()}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[n][j] = 0.0f;
    __syncthreads();

    for (u32 run = 0, end; run < TILE_T; run = end) {
        int sequence = sequences[run], longest = -1, last[2];
        for (end = run; end < TILE_T && sequences[end] == sequence; end++) longest = max(longest, positions[end]);
        if (longest < 0) continue;
        for (u32 i = 0; i < 2; i++) {
            u32 row = at + g + 8 * i;
            last[i] = row >= run && row < end ? positions[row] : -1;
        }
        int shallowest = -(int)warp_max((float)-min(last[0], last[1]));  // positions are far below 2^24
        const int* table = tables + (size_t)sequence * max_blocks;
        u32 blocks = (u32)longest / KV_BLOCK + 1;
        auto load = [&](u32 b) {
            if (b < blocks)
                load_block(stages + b % STAGES * STAGE, k_cache, v_cache,
                           ((size_t)table[b] * n_kv_heads + kv_head) * KV_BLOCK, (u32)longest + 1 - b * KV_BLOCK);
            copy_group();
        };
        load(0);
        for (u32 b = 0; b < blocks; b++) {
            int start = (int)b * KV_BLOCK;
            const Words *keys = stages + b % STAGES * STAGE, *values = keys + KV_BLOCK * CHUNKS;
            copy_wait<0>();
            show_to_tensor_cores();
            __syncthreads();
            load(b + 1);
            float s[8][4];
            warpgroup_arrive();
#pragma unroll
            for (int k = 0; k < K_STEPS; k++) {
                const Words* part = keys + k / 4 * KV_BLOCK * 8;
                warpgroup_mma_half<0>(s[0], q_low[k], part, 32 * (k % 4), k > 0);
                warpgroup_mma_half<0>(s[0], q_high[k], part, 32 * (k % 4), true);
            }
            warpgroup_commit();
            warpgroup_wait<0>();  // for the values of the block before, too
            if (start + KV_BLOCK - 1 > shallowest)
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        if (start + 8 * n + 2 * (int)t + j % 2 > last[j / 2]) s[n][j] = minus_infinity();
            float now[2] = {largest[0], largest[1]}, rescale[2];
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) now[j / 2] = fmaxf(now[j / 2], s[n][j]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                now[i] = over_row(now[i], true);
                float base = now[i] == minus_infinity() ? 0.0f : now[i];
                rescale[i] = exp2f(largest[i] - base);
                largest[i] = now[i];
                now[i] = base;
                total[i] *= rescale[i];
            }
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    s[n][j] = exp2f(s[n][j] - now[j / 2]);
                    total[j / 2] += s[n][j];
                }
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[n][j] *= rescale[j / 2];
            u32 high[KV_BLOCK / 16][4], low[KV_BLOCK / 16][4];
#pragma unroll
            for (int i = 0; i < KV_BLOCK / 4; i++) {
                const float* pair = s[i / 2] + i % 2 * 2;
                split_halves(pair[0], pair[1], high[i / 4][i % 4], low[i / 4][i % 4]);
            }
            warpgroup_arrive();
#pragma unroll
            for (int k = 0; k < KV_BLOCK / 16; k++)
#pragma unroll
                for (int n = 0; n < HEAD_DIM / 64; n++) {
                    const Words* part = values + n * KV_BLOCK * 8;
                    warpgroup_mma_half<1>(acc[8 * n], low[k], part, 2048 * k, true);
                    warpgroup_mma_half<1>(acc[8 * n], high[k], part, 2048 * k, true);
                }
            warpgroup_commit();
        }
        warpgroup_wait<0>();
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 in_tile = at + g + 8 * i, row = first + in_tile;
        float sum = over_row(total[i], false);
        if (row >= rows) continue;
        float factor = positions[in_tile] < 0 ? 0.0f : 1.0f / sum;
        Pair* to = (Pair*)(out + ((size_t)row * n_heads + head) * HEAD_DIM + 2 * t);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) to[4 * n] = Pair{acc[n][2 * i] * factor, acc[n][2 * i + 1] * factor};
    }
}
