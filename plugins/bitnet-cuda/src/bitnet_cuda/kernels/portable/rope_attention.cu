// rope_store_kv and attention of rows that belong to different sequences: each row's newest key and value come from qkv and
// go into the caches on the way. A block makes TILE_N (H) query heads of one key/value head over its share of a row's
// positions (z of SPLITS, see meeting.cuh). LANES lanes share a cached position, eight elements each; every group of
// lanes has running softmaxes of its own, put together at the end. What earlier steps have cached is asked for before
// the kernels ahead have ended.
#include "prelude.cuh"
#include "rope_element.cuh"
#include "kv_piece.cuh"

#define H TILE_N
#include "attention_parts.cuh"

#define WARPS (GROUP / 32)
#define SLOTS (GROUP / LANES)

struct Running {
    float top[H], total[H], mixed[H][8];
};

KERNEL rope_attention(const float* qkv, const Row* step, const CosSin* rope, const float* q_gamma, const float* k_gamma,
                      u32* k_cache, u32* v_cache, const int* tables, float* out, u32* workspace, u32 rows, u32 n_heads,
                      u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale, float eps,
                      const u8* ahead, u32 ahead_bytes) {
    __shared__ float inverses[H + 1], fresh[H + 2][DIM], mixed[WARPS][H][DIM], tops[WARPS][H], totals[WARPS][H];
    u32 first_head = blockIdx.x * H, row = blockIdx.y, split = blockIdx.z, per_kv = n_heads / n_kv_heads;
    u32 kv_head = first_head / per_kv, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 d0 = threadIdx.x % LANES * 8, slot = threadIdx.x / LANES, row_words = row_bytes / 4;
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
    auto head_of = [&](u32 which) {  // of the block's queries, its key and its value
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
#pragma unroll
    for (int h = 0; h < H; h++) {
        r.top[h] = minus_infinity();
        r.total[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) r.mixed[h][i] = 0.0f;
    }
    for (u32 start = begin; start < end; start += UNROLL * SLOTS) {
        float scores[UNROLL][H], k[8], v[8];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u32 p = start + u * SLOTS + slot;
            if (p == last) {
                keys[u] = new_key;
                values[u] = new_value;
                if (first_head % per_kv == 0) {
                    size_t at = ((size_t)now.slot / KV_BLOCK * n_kv_heads + kv_head) * KV_BLOCK + now.slot % KV_BLOCK;
                    store_piece(new_key, k_cache + at * row_words, d0);
                    store_piece(new_value, v_cache + at * row_words, d0);
                }
            }
            unpack(keys[u], k);
#pragma unroll
            for (int h = 0; h < H; h++) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) sum += q[h][i] * k[i];
#pragma unroll
                for (int d = LANES / 2; d > 0; d >>= 1) sum += shuffle_xor(sum, d);
                scores[u][h] = p < end ? sum * scale : minus_infinity();
            }
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            float top = r.top[h];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) top = fmaxf(top, scores[u][h]);
            float rescale = r.top[h] == top ? 1.0f : expf(r.top[h] - top);
            r.top[h] = top;
            r.total[h] *= rescale;
#pragma unroll
            for (int i = 0; i < 8; i++) r.mixed[h][i] *= rescale;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                scores[u][h] = start + u * SLOTS + slot < end ? expf(scores[u][h] - top) : 0.0f;
                r.total[h] += scores[u][h];
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            unpack(values[u], v);
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int i = 0; i < 8; i++) r.mixed[h][i] += scores[u][h] * v[i];
        }
        if (start + UNROLL * SLOTS < end) load(start + UNROLL * SLOTS);
    }
#pragma unroll
    for (int h = 0; h < H; h++) {
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) {
            float top = shuffle_xor(r.top[h], d), total = shuffle_xor(r.total[h], d);
            float both = fmaxf(r.top[h], top);
            float mine = share(r.top[h], r.total[h], both), other = share(top, total, both);
            r.top[h] = both;
            r.total[h] = r.total[h] * mine + total * other;
#pragma unroll
            for (int i = 0; i < 8; i++)
                r.mixed[h][i] = r.mixed[h][i] * mine + shuffle_xor(r.mixed[h][i], d) * other;
        }
        if (lane < LANES)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (d0 + i < DIM) mixed[warp][h][d0 + i] = r.mixed[h][i];
        if (lane == 0) {
            tops[warp][h] = r.top[h];
            totals[warp][h] = r.total[h];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < H * DIM; i += GROUP) {
        u32 h = i / DIM, d = i % DIM;
        float top = minus_infinity(), total = 0.0f, sum = 0.0f;
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w][h]);
        for (int w = 0; w < WARPS; w++) {
            float part = share(tops[w][h], totals[w][h], top);
            total += totals[w][h] * part;
            sum += mixed[w][h][d] * part;
        }
        size_t head = (size_t)row * n_heads + first_head + h;
        if (splits == 1) {
            out[head * DIM + d] = sum / total;
            continue;
        }
        float* part = attention_part(workspace, head, split);
        part[4 + d] = sum;
        if (d == 0) {
            part[0] = top;
            part[1] = total;
        }
    }
    if (splits == 1 || !last_to_arrive(workspace, row * (n_heads / H) + blockIdx.x, splits)) return;
    join_parts(workspace, (size_t)row * n_heads + first_head, splits, out);
}
