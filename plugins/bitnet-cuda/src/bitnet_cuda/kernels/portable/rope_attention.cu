// rope_store_kv and attention for rows of different sequences: each row's newest key and value are taken from qkv and
// written to the caches.
// A block computes TILE_N (H) query heads of one key/value head over its share of a row's positions (grid z of SPLITS,
// see meeting.cuh), with the running softmaxes of running.cuh. Positions cached by earlier steps are loaded before the
// preceding kernels have finished.
#include "prelude.cuh"
#include "rope_element.cuh"
#include "kv_piece.cuh"

#define H TILE_N
#include "running.cuh"

// inverses[which] of the block's H query heads and its key head if QKNORM is 1; head_of(which) points to the DIM
// elements.
template <class HeadOf>
__device__ inline void head_inverses(float* inverses, HeadOf head_of, float eps) {
    if (!QKNORM) return;
    for (u32 which = threadIdx.x / 32; which <= H; which += GROUP / 32) {
        const float* x = head_of(which);
        float squares = 0.0f;
        for (u32 d = threadIdx.x % 32; d < DIM; d += 32) squares += x[d] * x[d];
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) inverses[which] = head_inverse(squares, DIM, eps);
    }
    __syncthreads();
}

KERNEL rope_attention(const float* qkv, const Row* step, const CosSin* rope, const float* q_gamma, const float* k_gamma,
                      u32* k_cache, u32* v_cache, const int* tables, float* out, u32* workspace, u32 rows, u32 n_heads,
                      u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale, float eps,
                      const u8* ahead, u32 ahead_bytes) {
    __shared__ float inverses[H + 1], fresh[H + 2][DIM];
    u32 first_head = blockIdx.x * H, row = blockIdx.y, split = blockIdx.z, per_kv = n_heads / n_kv_heads;
    u32 kv_head = first_head / per_kv, d0 = threadIdx.x % LANES * 8, slot = threadIdx.x / LANES, row_words = row_bytes / 4;
    let_next_start();
    fetch_ahead(ahead, ahead_bytes);
    Row now = step[row];
    u32 last = (u32)now.position, length = last + 1;
    u32 splits = min((u32)SPLITS, (length + SPAN - 1) / SPAN);
    bool used = now.position >= 0 && now.slot >= 0;
    if (!used || split >= splits) {
        wait_for_previous();
        if (!used && split == 0)
            for (u32 i = threadIdx.x; i < H * DIM; i += GROUP) out[((size_t)row * n_heads + first_head) * DIM + i] = 0.0f;
        return;
    }
    u32 each = (length + splits - 1) / splits, begin = split * each, end = min(length, begin + each);
    const int* table = tables + (size_t)now.sequence * max_blocks;
    Piece keys[UNROLL], values[UNROLL];
    auto load = [&](u32 start) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u32 p = start + u * SLOTS + slot;
            keys[u] = values[u] = Piece{};
            if (p >= end || p == last) continue;
            size_t at = ((size_t)table[p / KV_BLOCK] * n_kv_heads + kv_head) * KV_BLOCK + p % KV_BLOCK;
            keys[u] = load_piece(k_cache + at * row_words, d0);
            values[u] = load_piece(v_cache + at * row_words, d0);
        }
    };
    load(begin);
    wait_for_previous();
    const float* x = qkv + (size_t)row * (n_heads + 2 * n_kv_heads) * DIM;
    const CosSin* angles = rope + (size_t)last * (DIM / 2);
    auto head_of = [&](u32 which) {  // the block's query heads, key head and value head
        return x + (size_t)(which < H ? first_head + which : n_heads + kv_head + (which == H ? 0 : n_kv_heads)) * DIM;
    };
    head_inverses(inverses, head_of, eps);
    for (u32 i = threadIdx.x; i < (H + 2) * DIM; i += GROUP) {
        u32 which = i / DIM, d = i % DIM;
        Head h = {head_of(which), which < H ? q_gamma : k_gamma, QKNORM && which <= H ? inverses[which] : 1.0f};
        fresh[which][d] = which <= H ? rotated(h, angles, d, DIM) : h.x[d];
    }
    __syncthreads();
    float q[H][8], new_k[8], new_v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bool inside = DIM % 8 == 0 && DIM == 8 * LANES || d0 + i < DIM;
        new_k[i] = inside ? fresh[H][d0 + i] : 0.0f;
        new_v[i] = inside ? fresh[H + 1][d0 + i] : 0.0f;
#pragma unroll
        for (int h = 0; h < H; h++) q[h][i] = inside ? fresh[h][d0 + i] : 0.0f;
    }
    Piece new_key = pack(new_k), new_value = pack(new_v);
    Running r;
    r.clear();
    for (u32 start = begin; start < end; start += ROUND) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (start + u * SLOTS + slot != last) continue;
            keys[u] = new_key;
            values[u] = new_value;
            if (first_head % per_kv == 0) {
                size_t at = ((size_t)now.slot / KV_BLOCK * n_kv_heads + kv_head) * KV_BLOCK + now.slot % KV_BLOCK;
                store_piece(new_key, k_cache + at * row_words, d0);
                store_piece(new_value, v_cache + at * row_words, d0);
            }
        }
        r.add(q, keys, values, start + slot, end, scale);
        if (start + ROUND < end) load(start + ROUND);
    }
    finish(r, workspace, (size_t)row * n_heads + first_head, split, splits, out);
}
