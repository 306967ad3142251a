// rope_attention and rope_attention_mixed (ROPE_ATTENTION) on tensor cores for an f16 cache, DIM 64, 128 or 256, and up to
// four query heads of one key/value head per block.
// Up to FRESH rows of a launch belong to one sequence. A block computes the keys and values of those before its row, as
// of its own, from qkv: they are not in the cache yet. With FRESH > 1 the shares of the positions depend on the row's
// position alone, at least SHARE for each block, so a row's result has the same bits in every batch.
// A block processes 16 TILES positions per warp at a time (a round), all warps in the same step: with so few queries,
// latency limits a step. If there are more positions than a round, blocks share them, 16 per warp each: a share of a row
// for each block or, with FRESH > 1, the shares of all rows in turns (turns_of_rows.cuh).
//   scores[16 positions x 8] = K[16 x DIM] . q^T, one warp per 16 positions: the columns are four heads as high and low
//   f16; one thread computes the weights exp(score - largest) of two positions of a head;
//   out^T[16 elements x 8] += V^T[16 x positions] . weights^T, one warp per 16 elements and every PARTSth tile of 16
//   positions.
// Queries and weights are split into two f16, so that products have 22 bits. Lane (g, t) of a warp loads chunks (eight
// elements) t, t + 4, ... of positions g and g + 8 of K, which already are A fragments; values lie in shared memory,
// swizzled by row. Positions cached by earlier steps are loaded before the preceding kernels have finished: values of
// BUFFERS rounds (1 or 2), and keys of the next one, which are prefetched into the L2 cache. RESIDENT blocks fit on a
// multiprocessor.
#include "prelude.cuh"
#include "rope_element.cuh"
#include "tensor.cuh"
#include "halves.cuh"

#define H TILE_N
#define WARPS (GROUP / 32)
#define SPAN (16 * WARPS)              // positions if each warp has one tile
#define ROUND (SPAN * TILES)           // positions
#define FINE_PARTS 4                   // with one row, the parts are halves of a SPAN
#define CHUNKS (DIM / 8)
#define K_PARTS (CHUNKS / 4)
#define KEPT (DIM <= 128)              // queries stay in registers
#define SLICES (DIM / 16)
#define PARTS (WARPS / SLICES)
#ifdef SHARES  // of a row, at most, if SPLITS blocks take those of all rows in turns
#undef SPLITS
#define SPLITS SHARES
#endif
#ifndef LIKE  // sums have the order that LIKE times as many warps with a tile each would give them
#define LIKE 1
#endif
#define TOGETHER (WARPS / PARTS < 4 ? WARPS / PARTS : 4)  // tiles of values that a warp multiplies even if they have no positions

#include "attention_parts.cuh"
#include "joined_heads.cuh"
#include "turned_heads.cuh"
#include "turns_of_rows.cuh"

#define FRESH_APART (FRESH > 8)  // new keys and values follow the cached values in dynamic shared memory

struct Shared {
    Words queries[8][CHUNKS + 4];
#if !FRESH_APART
    Fresh fresh[2 * FRESH];
#endif
    Floats scores[ROUND];       // of four heads
    u32 weights[ROUND / 2][8];  // two positions each; columns as for queries
    float mixed[LIKE * PARTS][4][DIM], tops[WARPS * TILES][4], totals[LIKE * WARPS][4], rescale[4], largest[4], joined[4][32];
};

// The positions of a key/value head that a block processes. Those from `fresh` on are not in the cache yet.
struct Positions {
    const Words *keys, *values;
    const int* table;
    u32 n_kv_heads, kv_head, end, fresh;

    __device__ size_t row(u32 p) const {
        return (((size_t)table[p / KV_BLOCK] * n_kv_heads + kv_head) * KV_BLOCK + p % KV_BLOCK) * CHUNKS;
    }
    __device__ bool cached(u32 p) const { return p < end && p < fresh; }
};

__device__ inline u32 value_at(u32 p, u32 chunk) { return p * CHUNKS + (chunk ^ p % 8); }

typedef Words Keys[2][K_PARTS];  // of a lane, for a tile of 16 positions

__device__ inline void load_keys(Keys& keys, const Positions& at, u32 first) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    size_t row = first < at.end ? at.row(first) : 0;  // a tile lies within one cache block
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < K_PARTS; c++)
            keys[i][c] = at.cached(first + g + 8 * i) ? at.keys[row + (g + 8 * i) * CHUNKS + t + 4 * c] : Words{0, 0, 0, 0};
}

__device__ inline void load_values(Words* values, const Positions& at, u32 start) {
    u32 rows = start < at.end ? min((u32)ROUND, (at.end - start + 15) / 16 * 16) : 0;
    for (u32 i = threadIdx.x; i < rows * CHUNKS; i += GROUP) {
        u32 p = i / CHUNKS, chunk = i % CHUNKS;
        bool wanted = at.cached(start + p);
        copy_async_or_zero(values + value_at(p, chunk), at.values + (wanted ? at.row(start + p) + chunk : 0), wanted);
    }
    copy_group();
}

// Prefetches the keys of a later round into the L2 cache, one cache block per thread.
__device__ inline void fetch_keys(const Positions& at, u32 start) {
    u32 p = start + threadIdx.x * KV_BLOCK;
    if (threadIdx.x < ROUND / KV_BLOCK && p < at.end)
        fetch(at.keys + at.row(p), min(KV_BLOCK - p % KV_BLOCK, at.end - p) * (2 * DIM));
}

// Computes the scores of the 16 positions of a tile, and the largest of each head.
__device__ inline void score(Shared& s, const Keys& keys, const Words (&queries)[K_PARTS], u32 tile, u32 count, float scale) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (16 * tile >= count) {
        float none = minus_infinity();
        if (lane < 16) s.scores[16 * tile + lane] = {none, none, none, none};
        if (lane < 4) s.tops[tile][lane] = none;
        return;
    }
    float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f}, top[2];
#pragma unroll
    for (int c = 0; c < K_PARTS; c++) {
        Words low = keys[0][c], high = keys[1][c], q = KEPT ? queries[c] : s.queries[g][t + 4 * c];
        u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
        mma_half(even, first, q.x, q.y);
        mma_half(odd, second, q.z, q.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {  // positions g, g, g + 8, g + 8; heads 2t % 4 and the next
        float sum = even[i] + odd[i];
        sum += shuffle_xor(sum, 2);
        u32 p = 16 * tile + g + i / 2 * 8;
        even[i] = p < count ? sum * scale : minus_infinity();
        if (t < 2) ((float*)&s.scores[p])[2 * t + i % 2] = even[i];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(even[i], even[i + 2]);
        for (int d = 4; d < 32; d *= 2) top[i] = fmaxf(top[i], shuffle_xor(top[i], d));
        if (lane < 2) s.tops[tile][2 * t + i] = top[i];
    }
}

// Scores of two positions of a head, for each of the warp's own tiles; threadIdx.x % 4 is the head.
struct Pairs {
    float a[TILES], b[TILES];

    __device__ void read(const Shared& s, u32 tiles) {
        sync_warp();
#pragma unroll
        for (u32 j = 0; j < TILES; j++) {
            if (j >= tiles) break;
            const float* pair = (const float*)&s.scores[threadIdx.x / 4 * 2 + j * SPAN] + threadIdx.x % 4;
            a[j] = pair[0], b[j] = pair[4];
        }
    }
};

// Turns them into weights, stored in s; top and total: the head's largest score and this thread's sums so far.
__device__ inline void weigh(Shared& s, const Pairs& pairs, u32 tiles, float& top, float (&total)[LIKE]) {
    u32 h = threadIdx.x % 4;
    float before = top, sum[LIKE] = {};
#pragma unroll
    for (u32 w = 0; w < WARPS * TILES; w += 8)
        if (w < WARPS * tiles) top = fmaxf(top, s.tops[w + threadIdx.x % 32 / 4][h]);
    for (int d = 4; d < 32; d *= 2) top = fmaxf(top, shuffle_xor(top, d));
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
        if (j >= tiles) break;
        float a = pairs.a[j] == minus_infinity() ? 0.0f : expf(pairs.a[j] - top);
        float b = pairs.b[j] == minus_infinity() ? 0.0f : expf(pairs.b[j] - top);
        u32* to = s.weights[threadIdx.x / 4 + j * (SPAN / 2)];
        split_halves(a, b, to[h], to[4 + h]);
        sum[j % LIKE] += a + b;
    }
#pragma unroll
    for (int i = 0; i < LIKE; i++) {
        float rescale = total[i] == 0.0f ? 0.0f : expf(before - top);
        total[i] = total[i] * rescale + sum[i];
    }
    if (threadIdx.x < 4) s.rescale[h] = before == minus_infinity() ? 0.0f : expf(before - top);
}

// Returns the number of rows right before this one that belong to its sequence.
__device__ inline u32 rows_before(const Row* step, u32 row) {
    Row now = step[row];
    auto belongs = [&](u32 j) {
        Row other = step[row - min(j, row)];
        bool next = other.slot >= 0 && other.sequence == now.sequence && other.position + (int)j == now.position;
        return j <= row && next;
    };
    u32 before = 0;
#if FRESH_APART
    for (u32 some = 0; some < FRESH && before == some; some += 32) {  // a lane looks at one row
        u32 lane = threadIdx.x % 32, left_out = warp_max_bits(belongs(some + 1 + lane) ? 0 : 32 - lane);
        before += 32 - left_out;
    }
#else
#pragma unroll
    for (u32 j = 1; j < FRESH; j++)
        if (belongs(j) && before == j - 1) before = j;
#endif
    return before;
}

// The arguments of a launch.
struct Launch {
    const float* qkv;
    const Row* step;
    const CosSin* rope;
    const float *q_gamma, *k_gamma;
    u32 *k_cache, *v_cache;
    const int* tables;
    Output output;
    u32 *workspace, n_heads, n_kv_heads, max_blocks;
    float scale, eps;
};

// Computes a share of a row's positions for the block's heads; the last of its blocks to end combines them.
__device__ inline void attend(const Launch& of, Shared& s, Words* pool, u32 row, u32 split, u32 splits) {
#if FRESH_APART
    const Heads own = {s.queries, (Fresh*)(pool + BUFFERS * ROUND * CHUNKS)};
#else
    const Heads own = {s.queries, s.fresh};
#endif
    u32 first_head = blockIdx.x * H, per_kv = of.n_heads / of.n_kv_heads, kv_head = first_head / per_kv;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    Row now = of.step[row];
    u32 last = (u32)now.position, length = last + 1, before = rows_before(of.step, row);
    u32 each = positions_of_share(length, splits), begin = split * each, end = min(length, begin + each);
    Positions at = {(const Words*)of.k_cache, (const Words*)of.v_cache, of.tables + (size_t)now.sequence * of.max_blocks,
                    of.n_kv_heads, kv_head, end, last - before};
    TurnedHeads heads = {of.rope + (size_t)last * (DIM / 2), of.q_gamma, of.k_gamma, before + 1};
    heads.load(warp);
    Keys keys[TILES];
#pragma unroll
    for (int j = 0; j < TILES; j++) load_keys(keys[j], at, begin + 16 * warp + j * SPAN);
#pragma unroll
    for (int i = 0; i < BUFFERS; i++) load_values(pool + i * ROUND * CHUNKS, at, begin + i * ROUND);
    fetch_keys(at, begin + ROUND);
    wait_for_previous();
    auto head_of = [&](u32 which) {
        u32 of_row = row - (which < 4 ? 0 : which / 2 - 2);
        u32 head = which < 4 ? first_head + which : of.n_heads + kv_head + which % 2 * of.n_kv_heads;
        return of.qkv + ((size_t)of_row * (of.n_heads + 2 * of.n_kv_heads) + head) * DIM;
    };
    heads.store(own, head_of, of.eps);
    if (end == length && first_head % per_kv == 0 && threadIdx.x < 2 * CHUNKS) {
        size_t to = ((size_t)now.slot / KV_BLOCK * of.n_kv_heads + kv_head) * KV_BLOCK + now.slot % KV_BLOCK;
        u32 chunk = threadIdx.x % CHUNKS;
        ((Words*)(threadIdx.x < CHUNKS ? of.k_cache : of.v_cache))[to * CHUNKS + chunk] = own.fresh[threadIdx.x / CHUNKS][chunk];
    }
    Words q[K_PARTS];
#pragma unroll
    for (int c = 0; c < K_PARTS; c++)
        if (KEPT && begin + 16 * warp < end) q[c] = s.queries[g][t + 4 * c];
    float top = minus_infinity(), total[LIKE] = {};  // of head threadIdx.x % 4
    float acc[LIKE][2][4] = {};
    u32 slice = warp % SLICES, part = warp / SLICES;
    Words* values = pool;
    for (u32 start = begin;; start += ROUND) {
        u32 count = min((u32)ROUND, end - start), tiles = count > SPAN ? TILES : 1;
#pragma unroll
        for (u32 j = 0; j < TILES; j++) {
            if (j >= tiles) break;
            u32 tile = warp + j * WARPS;
            if (last - start - 16 * tile < 15 + FRESH) {  // positions that are not cached may be in this tile
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    u32 back = last - (start + 16 * tile + g + 8 * i);
#pragma unroll
                    for (int c = 0; c < K_PARTS; c++)
                        if (back <= before) keys[j][i][c] = own.fresh[2 * back][t + 4 * c];
                }
            }
            score(s, keys[j], q, tile, count, of.scale);
        }
        Pairs pairs;
        pairs.read(s, tiles);
        copy_wait<BUFFERS - 1>();
        __syncthreads();
        for (u32 i = threadIdx.x; i < (before + 1) * CHUNKS; i += GROUP) {
            u32 back = i / CHUNKS, chunk = i % CHUNKS, p = last - back - start;
            if (p < count) values[value_at(p, chunk)] = own.fresh[2 * back + 1][chunk];
            if (!FRESH_APART) break;
        }
        if (start + ROUND < end)
#pragma unroll
            for (int j = 0; j < TILES; j++) load_keys(keys[j], at, start + ROUND + 16 * warp + j * SPAN);
        fetch_keys(at, start + 2 * ROUND);
        weigh(s, pairs, tiles, top, total);
        __syncthreads();
        if (start > begin)
#pragma unroll
            for (int i = 0; i < 8 * LIKE; i++) acc[i / 8][i / 4 % 2][i % 4] *= s.rescale[(2 * t + i % 2) % 4];
#pragma unroll
        for (u32 j = 0; j < TILES * WARPS / PARTS; j += TOGETHER)
            if (j == 0 || 16 * PARTS * j < count)
#pragma unroll
                for (u32 i = j; i < j + TOGETHER; i++) {  // positions past the end have weight 0
                    u32 a[4], tile = i * PARTS + part, p = (16 * tile < count ? 16 * tile : 0) + lane % 8 + lane / 16 * 8;
                    load_matrices_transposed(a, values + value_at(p, 2 * slice + lane / 8 % 2));
                    mma_half(acc[i % LIKE][i / LIKE % 2], a, s.weights[8 * tile + t][g], s.weights[8 * tile + 4 + t][g]);
                }
        if (start + ROUND >= end) break;
        __syncthreads();
        load_values(values, at, start + BUFFERS * ROUND);
        if (BUFFERS == 2) values = pool + (values == pool ? ROUND * CHUNKS : 0);
    }
#pragma unroll
    for (int i = 0; i < 4 * LIKE; i++) {  // elements g, g, g + 8, g + 8 of the slice; heads 2t % 4 and the next
        float sum = acc[i / 4][0][i % 4] + acc[i / 4][1][i % 4];
        sum += shuffle_xor(sum, 2);
        if (t < 2) s.mixed[i / 4 * PARTS + part][2 * t + i % 2][16 * slice + g + i % 4 / 2 * 8] = sum;
    }
#pragma unroll
    for (int i = 0; i < LIKE; i++) {
        for (int d = 4; d < 32; d *= 2) total[i] += shuffle_xor(total[i], d);
        if (lane < 4) s.totals[i * WARPS + warp][lane] = total[i];
    }
    if (threadIdx.x < 4) s.largest[threadIdx.x] = top;
    __syncthreads();
    if (warp >= H) return;
    size_t head = (size_t)row * of.n_heads + first_head + warp;
    Part result = {};
    result.top = s.largest[warp];
#pragma unroll
    for (int w = 0; w < LIKE * WARPS; w++) result.total += s.totals[w][warp];
#pragma unroll
    for (int i = 0; i < LIKE * PARTS * FOURS; i++)
        add(result.sum[i % FOURS], ((const Floats*)s.mixed[i / FOURS][warp])[four_of(i % FOURS)], 1.0f);
    if (splits == 1)
        of.output.write(head, result.sum, result.total);
    else if (last_to_leave(of.workspace, head, split, splits, result))
        join_head(of.workspace, head, splits, s.joined[warp], of.output);
}

#if JOINED
#define CODES_OF_HEADS , u32 *out_q, float *out_scale, int *out_qsum
#define OUTPUT {out, {out_q, out_scale, out_qsum}}
#else
#define CODES_OF_HEADS
#define OUTPUT {out}
#endif

KERNEL_RESIDENT(RESIDENT) ROPE_ATTENTION(const float* qkv, const Row* step, const CosSin* rope, const float* q_gamma, const float* k_gamma,
                      u32* k_cache, u32* v_cache, const int* tables, float* out, u32* workspace CODES_OF_HEADS, u32 rows, u32 n_heads,
                      u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale, float eps,
                      const u8* ahead, u32 ahead_bytes) {
    DYNAMIC_SHARED(Words, pool);  // values: [BUFFERS][ROUND][CHUNKS]
    __shared__ Shared s;
    const Launch of = {qkv, step, rope, q_gamma, k_gamma, k_cache, v_cache, tables, OUTPUT, workspace, n_heads, n_kv_heads, max_blocks, scale, eps};
    let_next_start();
    fetch_ahead(ahead, ahead_bytes);
    const Turns turns(step, rows);
    for (u32 i = turns.first(); i < turns.count; i += gridDim.z) {  // a block without a turn need not wait
        Turn turn = turns[i];
        Row row = step[turn.row];
        if (row.position >= 0 && row.slot >= 0) {
            attend(of, s, pool, turn.row, turn.split, shares_of(row, rows));
        } else {
            u32 warp = threadIdx.x / 32;
            wait_for_previous();
            if (warp < H) of.output.clear((size_t)turn.row * n_heads + blockIdx.x * H + warp);
        }
        if (FRESH == 1) break;
    }
}
