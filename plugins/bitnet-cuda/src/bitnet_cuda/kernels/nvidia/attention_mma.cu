// attention for prompts on tensor cores (compute capability 8.0 and later; f16 or int8 caches, HEAD_DIM 64, 128 or
// 256): out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t], with a running maximum over blocks
// of 64 positions (flash attention, Dao et al. 2022).
// A thread block computes TILE_T rows of the step and TILE_N query heads of one key/value head; each warp computes 16
// rows of one head. Keys and values are copied asynchronously, one cache block ahead. Rows of a tile that belong to one
// sequence are processed together, one sequence after the other.
// q and the softmax weights are f32: each is split into the sum of two f16 (22 bits), multiplied in sequence, so that
// f16 products lose nothing that f32 would keep. |q| * scale must stay below 45,000, else the row becomes NaN.
#include "prelude.cuh"
#include "tensor.cuh"
#include "halves.cuh"
#include "cache_blocks.cuh"

#define K_STEPS (HEAD_DIM / 16)
#define LOG2_E 1.44269504f

struct alignas(8) Pair {
    float a, b;
};

// The fragments of a warp's 16 query rows, 16 columns each. Those of 256 elements do not fit the registers.
#if HEAD_DIM > 128
struct Queries {
    Words* own;  // in shared memory, of this lane
    __device__ explicit Queries(Words* shared) : own(shared + threadIdx.x / 32 * K_STEPS * 64 + threadIdx.x % 32) {}
    __device__ void store(int k, const u32* high, const u32* low) {
        own[64 * k] = {high[0], high[1], high[2], high[3]};
        own[64 * k + 32] = {low[0], low[1], low[2], low[3]};
    }
    __device__ void load(int k, u32* high, u32* low) const {
        Words a = own[64 * k], b = own[64 * k + 32];
        high[0] = a.x, high[1] = a.y, high[2] = a.z, high[3] = a.w;
        low[0] = b.x, low[1] = b.y, low[2] = b.z, low[3] = b.w;
    }
};
#else
struct Queries {
    u32 highs[K_STEPS][4], lows[K_STEPS][4];
    __device__ explicit Queries(Words*) {}
    __device__ void store(int k, const u32* high, const u32* low) {
#pragma unroll
        for (int i = 0; i < 4; i++) highs[k][i] = high[i], lows[k][i] = low[i];
    }
    __device__ void load(int k, u32* high, u32* low) const {
#pragma unroll
        for (int i = 0; i < 4; i++) high[i] = highs[k][i], low[i] = lows[k][i];
    }
};
#endif

__device__ inline float over_row(float v, bool largest) {  // over the four lanes that share a row of a fragment
    for (int d = 1; d < 4; d *= 2) {
        float other = shuffle_xor(v, d);
        v = largest ? fmaxf(v, other) : v + other;
    }
    return v;
}

typedef float Scores[KV_BLOCK / 8][4];  // of 16 rows with a block of positions, in the layout of mma.m16n8k16

// Loads queries of 16 rows from `first` on, times scale and log2(e). Rows past the last one repeat it.
__device__ inline void load_queries(Queries& queries, const float* q, size_t stride, u32 first, u32 rows, float scale) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float factor = scale * LOG2_E;
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
        u32 high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 row = min(first + g + 8 * (i % 2), rows - 1);
            const Pair* from = (const Pair*)(q + row * stride + 16 * k + 8 * (i / 2) + 2 * t);
            split_halves(from->a * factor, from->b * factor, high[i], low[i]);
        }
        queries.store(k, high, low);
    }
}

__device__ inline void multiply_keys(Scores& s, const Queries& queries, const Words* keys) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KV_BLOCK / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[n][j] = 0.0f;
#pragma unroll
    for (int k = 0; k < K_STEPS; k++) {
        u32 high[4], low[4];
        queries.load(k, high, low);
#pragma unroll
        for (int n = 0; n < KV_BLOCK / 8; n += 2) {
            u32 part[4];
            load_matrices(part, keys + word_of(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma_half(s[n], low, part[0], part[1]);
            mma_half(s[n + 1], low, part[2], part[3]);
            mma_half(s[n], high, part[0], part[1]);
            mma_half(s[n + 1], high, part[2], part[3]);
        }
    }
}

// Sets scores of positions past the last ones of rows g and g + 8 to -inf. start: the block's first position.
__device__ inline void mask(Scores& s, int start, const int (&last)[2]) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < KV_BLOCK / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (start + 8 * n + 2 * t + j % 2 > last[j / 2]) s[n][j] = minus_infinity();
}

// A warp's 16 rows: sums of weighted values, largest scores and sums of weights of rows g and g + 8, in the layout of
// mma.m16n8k16.
struct Rows16 {
    float acc[HEAD_DIM / 8][4], largest[2], total[2];

    __device__ Rows16() : largest{minus_infinity(), minus_infinity()}, total{0.0f, 0.0f} {
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[n][j] = 0.0f;
    }
    // Turns scores into weights relative to a running maximum, and rescales the sums so far.
    __device__ void weigh(Scores& s) {
        float now[2] = {largest[0], largest[1]}, rescale[2];
#pragma unroll
        for (int n = 0; n < KV_BLOCK / 8; n++)
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
        for (int n = 0; n < KV_BLOCK / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                s[n][j] = exp2f(s[n][j] - now[j / 2]);
                total[j / 2] += s[n][j];
            }
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[n][j] *= rescale[j / 2];
    }
    __device__ void add(const Scores& weights, const Words* values) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < KV_BLOCK / 16; k++) {
            u32 high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* pair = weights[2 * k + i / 2] + i % 2 * 2;
                split_halves(pair[0], pair[1], high[i], low[i]);
            }
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n += 2) {
                u32 part[4];
                u32 row = 16 * k + lane / 8 % 2 * 8 + lane % 8;
                load_matrices_transposed(part, values + word_of(row, n + lane / 16));
                mma_half(acc[n], low, part[0], part[1]);
                mma_half(acc[n + 1], low, part[2], part[3]);
                mma_half(acc[n], high, part[0], part[1]);
                mma_half(acc[n + 1], high, part[2], part[3]);
            }
        }
    }
    // to: the lane's first element of row g + 8 i. sum: of the row's weights.
    __device__ void store(Pair* to, int i, float sum, bool used) const {
        float factor = used ? 1.0f / (sum * VALUE_UNITS) : 0.0f;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) to[4 * n] = Pair{acc[n][2 * i] * factor, acc[n][2 * i + 1] * factor};
    }
};

// Processes the warp's rows `at`.. of the tile, from `run` to `end`, of one sequence with the cache blocks of `table`
// up to position `longest`.
__device__ inline void attend(Rows16& mine, const Queries& queries, const CacheBlocks& cache, const int* positions, u32 at,
                              u32 run, u32 end, int longest, const int* table, u32 n_kv_heads, u32 kv_head) {
    u32 g = threadIdx.x % 32 / 4;
    int last[2];
    for (u32 i = 0; i < 2; i++) {
        u32 row = at + g + 8 * i;
        last[i] = row >= run && row < end ? positions[row] : -1;
    }
    int deepest = (int)warp_max((float)max(last[0], last[1]));  // exact, since positions are far below 2^24
    int shallowest = -(int)warp_max((float)-min(last[0], last[1]));
    u32 blocks = (u32)longest / KV_BLOCK + 1;
    for (u32 b = 0; b <= blocks; b++) {
        if (b < blocks) cache.ask(b, (size_t)table[b] * n_kv_heads + kv_head, (u32)longest + 1 - b * KV_BLOCK);
        copy_group();
        if (b == 0) continue;
        copy_wait<1>();
        __syncthreads();
        int start = (int)(b - 1) * KV_BLOCK;
        const Words* keys = cache.unpacked(b - 1, (u32)longest + 1 - start);
        if (start <= deepest) {
            Scores s;
            multiply_keys(s, queries, keys);
            cache.scale_scores(s);
            if (start + KV_BLOCK - 1 > shallowest) mask(s, start, last);
            mine.weigh(s);
            cache.scale_weights(s);
            mine.add(s, keys + KV_BLOCK * CHUNKS);
        }
        __syncthreads();
    }
}

KERNEL attention(const float* q, const Words* k_cache, const Words* v_cache, const Row* step, const int* tables,
                 float* out, u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks,
                 float scale) {
    DYNAMIC_SHARED(Words, pool);
    CacheBlocks cache = {pool, k_cache, v_cache};
    __shared__ int positions[TILE_T], sequences[TILE_T];
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    u32 first = ((rows + TILE_T - 1) / TILE_T - 1 - blockIdx.y) * TILE_T;  // long rows first
    u32 head = blockIdx.x * TILE_N + warp / (TILE_T / 16), kv_head = head / (n_heads / n_kv_heads);
    u32 at = warp % (TILE_T / 16) * 16;
    size_t stride = (size_t)n_heads * HEAD_DIM;
    let_next_start();
    wait_for_previous();
    for (u32 i = threadIdx.x; i < TILE_T; i += GROUP) {
        bool used = first + i < rows;
        positions[i] = used ? step[first + i].position : -1;
        sequences[i] = used ? step[first + i].sequence : -1;
    }
    Queries queries(pool + CacheBlocks::WORDS);
    load_queries(queries, q + (size_t)head * HEAD_DIM, stride, first + at, rows, scale);
    Rows16 mine;
    __syncthreads();
    for (u32 run = 0, end; run < TILE_T; run = end) {
        int sequence = sequences[run], longest = -1;
        for (end = run; end < TILE_T && sequences[end] == sequence; end++) longest = max(longest, positions[end]);
        if (longest >= 0)
            attend(mine, queries, cache, positions, at, run, end, longest, tables + (size_t)sequence * max_blocks, n_kv_heads, kv_head);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 in_tile = at + g + 8 * i, row = first + in_tile;
        float sum = over_row(mine.total[i], false);
        if (row < rows) mine.store((Pair*)(out + row * stride + head * HEAD_DIM + 2 * t), i, sum, positions[in_tile] >= 0);
    }
}
