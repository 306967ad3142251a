// attention for few rows: out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t], through the row's
// block table; q and out are f32[rows, n_heads * DIM].
// A block computes TILE_N (H) query heads of one key/value head over its share of a row's positions (grid z of SPLITS,
// see meeting.cuh), with the running softmaxes of running.cuh. The number of shares and their bounds depend on the
// row's position alone, so a row's result has the same bits in every batch. The share of the cache is prefetched into
// the L2 cache before the preceding kernels have finished; it is loaded afterwards, since they may still write to it.
#include "prelude.cuh"
#include "kv_piece.cuh"

#define H TILE_N
#include "running.cuh"

// Elements first .. first + 7 of a head; elements past the end are zeros.
__device__ inline void load_eight(const float* head, u32 first, float* x) {
    if (DIM % 8 == 0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Floats four = first < DIM ? ((const Floats*)(head + first))[i] : Floats{0.0f, 0.0f, 0.0f, 0.0f};
            x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = first + i < DIM ? head[first + i] : 0.0f;
}

KERNEL attention(const float* q, const u32* k_cache, const u32* v_cache, const Row* step, const int* tables, float* out,
                 u32* workspace, u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks,
                 float scale) {
    u32 first_head = blockIdx.x * H, row = blockIdx.y, split = blockIdx.z, kv_head = first_head / (n_heads / n_kv_heads);
    u32 d0 = threadIdx.x % LANES * 8, slot = threadIdx.x / LANES, row_words = row_bytes / 4;
    size_t head = (size_t)row * n_heads + first_head;
    let_next_start();
    Row now = step[row];
    u32 length = (u32)now.position + 1, splits = min((u32)SPLITS, (length + SPAN - 1) / SPAN);
    if (now.position < 0 || split >= splits) {
        wait_for_previous();
        if (now.position < 0 && split == 0)
            for (u32 i = threadIdx.x; i < H * DIM; i += GROUP) out[head * DIM + i] = 0.0f;
        return;
    }
    u32 each = (length + splits - 1) / splits, begin = split * each, end = min(length, begin + each);
    const int* table = tables + (size_t)now.sequence * max_blocks;
    auto cache_row = [&](u32 p) {
        return (((size_t)table[p / KV_BLOCK] * n_kv_heads + kv_head) * KV_BLOCK + p % KV_BLOCK) * row_words;
    };
    if (row_bytes % 16 == 0) {  // a thread prefetches the positions of one cache block
        u32 block = begin / KV_BLOCK + threadIdx.x, from = max(begin, block * KV_BLOCK);
        if (from < end) {
            u32 bytes = (min(end, (block + 1) * KV_BLOCK) - from) * row_bytes;
            fetch(k_cache + cache_row(from), bytes);
            fetch(v_cache + cache_row(from), bytes);
        }
    }
    wait_for_previous();
    Piece keys[UNROLL], values[UNROLL];
    auto load = [&](u32 start) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u32 p = start + u * SLOTS + slot;
            keys[u] = values[u] = Piece{};
            if (p >= end) continue;
            size_t at = cache_row(p);
            keys[u] = load_piece(k_cache + at, d0);
            values[u] = load_piece(v_cache + at, d0);
        }
    };
    load(begin);
    float queries[H][8];
#pragma unroll
    for (int h = 0; h < H; h++) load_eight(q + (head + h) * DIM, d0, queries[h]);
    Running r;
    r.clear();
    for (u32 start = begin; start < end; start += ROUND) {
        r.add(queries, keys, values, start + slot, end, scale);
        if (start + ROUND < end) load(start + ROUND);
    }
    finish(r, workspace, head, split, splits, out);
}
