// rope_attention on tensor cores, for an f16 cache, DIM 64 or 128, and up to four query heads of one key/value head a
// block: with so few queries all that counts is the number of instructions per cached position.
// Queries and weights are split into f16 and what f16 leaves out, so that products have 22 bits. The eight columns of
//   scores[16 positions x 8] = K[16 x DIM] . q^T
// are four heads twice, once for each of the two; out^T[DIM x 4 heads] = V^T[DIM x 16 positions] . weights^T is done twice.
// A warp takes 16 positions at a time. Lane (g, t) reads chunks (eight elements) t, t + 4, ... of positions g and g + 8 of K,
// which are A fragments as they stand, and chunks g, g + 8, ... of positions 2t, 2t + 1, 2t + 8 and 2t + 9 of V, whose
// halves are paired anew. What earlier steps have cached is asked for before the kernels ahead have ended.
#include "prelude.cuh"
#include "rope_element.cuh"
#include "tensor.cuh"
#include "halves.cuh"

#define H TILE_N
#include "attention_parts.cuh"

#define WARPS (GROUP / 32)
#define CHUNKS (DIM / 8)
#define K_PARTS (CHUNKS / 4)
#define V_PARTS (CHUNKS / 8)

struct Tile {
    Words k[2][K_PARTS], v[4][V_PARTS];
};

KERNEL rope_attention(const float* qkv, const Row* step, const CosSin* rope, const float* q_gamma, const float* k_gamma,
                      u32* k_cache, u32* v_cache, const int* tables, float* out, u32* workspace, u32 rows, u32 n_heads,
                      u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale, float eps,
                      const u8* ahead, u32 ahead_bytes) {
    __shared__ Words queries[8][CHUNKS], fresh[2][CHUNKS];   // heads as f16, remainders; newest key, value
    __shared__ Words weights[WARPS][8][2];                   // of a warp's 16 positions, columns as above
    __shared__ Floats mixed[WARPS][4][DIM / 4 + 1];
    __shared__ float tops[WARPS][4], totals[WARPS][4], factors[WARPS][4], largest[4], sums[4], inverses[H + 1];
    u32 first_head = blockIdx.x * H, row = blockIdx.y, split = blockIdx.z, per_kv = n_heads / n_kv_heads;
    u32 kv_head = first_head / per_kv, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
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
    // Shares are multiples of 16, so that no tile crosses a cache block.
    u32 each = ((length + splits - 1) / splits + 15) / 16 * 16, begin = split * each, end = min(length, begin + each);
    const int* table = tables + (size_t)now.sequence * max_blocks;
    Tile tile;
    auto load = [&](u32 start) {
        const Words zero = {0, 0, 0, 0};
        size_t block = start < end ? (size_t)table[start / KV_BLOCK] : 0;
        size_t at = ((block * n_kv_heads + kv_head) * KV_BLOCK + start % KV_BLOCK) * CHUNKS;
        const Words *keys = (const Words*)k_cache + at, *values = (const Words*)v_cache + at;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < K_PARTS; c++) {
                u32 p = g + 8 * i;
                tile.k[i][c] = start + p < min(end, last) ? keys[p * CHUNKS + t + 4 * c] : zero;
            }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < V_PARTS; c++) {
                u32 p = 2 * t + i % 2 + i / 2 * 8;
                tile.v[i][c] = start + p < min(end, last) ? values[p * CHUNKS + g + 8 * c] : zero;
            }
    };
    load(begin + 16 * warp);
    wait_for_previous();
    const float* x = qkv + (size_t)row * (n_heads + 2 * n_kv_heads) * DIM;
    const CosSin* angles = rope + (size_t)last * (DIM / 2);
    auto head_of = [&](u32 which) {  // of the block's queries, its key and its value
        return x + (size_t)(which < H ? first_head + which : n_heads + kv_head + (which == H ? 0 : n_kv_heads)) * DIM;
    };
    head_inverses(inverses, head_of, eps);
#pragma unroll
    for (u32 i = threadIdx.x; i < 6 * DIM / 2; i += GROUP) {  // two elements at a time
        u32 which = i / (DIM / 2), d = i % (DIM / 2) * 2;
        float a = 0.0f, b = 0.0f;
        if (which >= 4 || which < H) {
            u32 index = which < 4 ? which : which - 4 + H;
            Head h = {head_of(index), which < 4 ? q_gamma : k_gamma, QKNORM && index <= H ? inverses[index] : 1.0f};
            a = which <= 4 ? rotated(h, angles, d, DIM) : h.x[d];
            b = which <= 4 ? rotated(h, angles, d + 1, DIM) : h.x[d + 1];
        }
        u32 high, low;
        split_halves(a, b, high, low);
        if (which < 4) {
            ((u32*)queries[which])[d / 2] = high;
            ((u32*)queries[4 + which])[d / 2] = low;
        } else
            ((u32*)fresh[which - 4])[d / 2] = high;
    }
    __syncthreads();
    if (end == length && first_head % per_kv == 0 && threadIdx.x < 2 * CHUNKS) {
        size_t at = ((size_t)now.slot / KV_BLOCK * n_kv_heads + kv_head) * KV_BLOCK + now.slot % KV_BLOCK;
        u32 chunk = threadIdx.x % CHUNKS;
        ((Words*)(threadIdx.x < CHUNKS ? k_cache : v_cache))[at * CHUNKS + chunk] = fresh[threadIdx.x / CHUNKS][chunk];
    }
    Words q[K_PARTS];
#pragma unroll
    for (int c = 0; c < K_PARTS; c++) q[c] = queries[g][t + 4 * c];
    float top[2], total[2], acc[V_PARTS][4][4];  // heads 2t % 4 and the next
#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = minus_infinity();
        total[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 16 * V_PARTS; i++) acc[i / 16][i / 4 % 4][i % 4] = 0.0f;
    for (u32 start = begin + 16 * warp; start < end; start += 16 * WARPS) {
        if (last - start < 16) {  // the newest position is in this tile
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int c = 0; c < K_PARTS; c++)
                    if (start + g + 8 * i == last) tile.k[i][c] = fresh[0][t + 4 * c];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < V_PARTS; c++)
                    if (start + 2 * t + i % 2 + i / 2 * 8 == last) tile.v[i][c] = fresh[1][g + 8 * c];
        }
        float scores[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
        for (int c = 0; c < K_PARTS; c++) {
            Words low = tile.k[0][c], high = tile.k[1][c];
            u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
            mma_half(scores[0], first, q[c].x, q[c].y);
            mma_half(scores[1], second, q[c].z, q[c].w);
        }
        float s[4];  // positions g, g, g + 8, g + 8; heads 2t % 4 and the next
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = scores[0][i] + scores[1][i];
            sum += shuffle_xor(sum, 2);
            s[i] = start + g + i / 2 * 8 < end ? sum * scale : minus_infinity();
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float highest = fmaxf(s[i], s[i + 2]);
            for (int d = 4; d < 32; d *= 2) highest = fmaxf(highest, shuffle_xor(highest, d));
            highest = fmaxf(highest, top[i]);
            float rescale = top[i] == highest ? 1.0f : expf(top[i] - highest);
            top[i] = highest;
            total[i] *= rescale;
#pragma unroll
            for (int m = 0; m < 8 * V_PARTS; m++) acc[m / 8][m / 2 % 4][m % 2 * 2 + i] *= rescale;
#pragma unroll
            for (int j = i; j < 4; j += 2) {
                s[j] = start + g + j / 2 * 8 < end ? expf(s[j] - highest) : 0.0f;
                total[i] += s[j];
            }
        }
        if (t < 2) {
            u16* mine = (u16*)weights[warp];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u16 high = float_to_half(s[j]);
                u32 column = 2 * t + j % 2, p = g + j / 2 * 8;
                mine[column * 16 + p] = high;
                mine[(column + 4) * 16 + p] = float_to_half(s[j] - half_to_float(high));
            }
        }
        sync_warp();
        u32 b[4] = {0, 0, 0, 0};
        if (g < 4) {
            const u32 *high = (const u32*)weights[warp][g], *low = (const u32*)weights[warp][g + 4];
            b[0] = high[t], b[1] = high[t + 4], b[2] = low[t], b[3] = low[t + 4];
        }
        sync_warp();
#pragma unroll
        for (int c = 0; c < V_PARTS; c++) {
            const u32* v[4] = {(const u32*)&tile.v[0][c], (const u32*)&tile.v[1][c], (const u32*)&tile.v[2][c],
                               (const u32*)&tile.v[3][c]};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 a[4] = {low_halves(v[0][j], v[1][j]), high_halves(v[0][j], v[1][j]), low_halves(v[2][j], v[3][j]),
                            high_halves(v[2][j], v[3][j])};
                mma_half(acc[c][j], a, b[0], b[1]);
                mma_half(acc[c][j], a, b[2], b[3]);
            }
        }
        if (start + 16 * WARPS < end) load(start + 16 * WARPS);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        for (int d = 4; d < 32; d *= 2) total[i] += shuffle_xor(total[i], d);
    if (t < 2)
#pragma unroll
        for (int m = 0; m < 4 * V_PARTS; m++) {  // acc[c][j][2k + i]: element 2j + k of chunk g + 8c, head 2t + i
            int c = m / 4, half = m / 2 % 2, i = m % 2;
            const float *first = acc[c][2 * half], *second = acc[c][2 * half + 1];
            mixed[warp][2 * t + i][(g + 8 * c) * 2 + half] = {first[i], first[2 + i], second[i], second[2 + i]};
        }
    if (g == 0 && t < 2)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            tops[warp][2 * t + i] = top[i];
            totals[warp][2 * t + i] = total[i];
        }
    __syncthreads();
    if (threadIdx.x < 4 * WARPS) {  // WARPS neighbouring lanes for each head
        u32 h = threadIdx.x / WARPS, w = threadIdx.x % WARPS;
        float highest = tops[w][h];
        for (int d = WARPS / 2; d > 0; d >>= 1) highest = fmaxf(highest, shuffle_xor(highest, d));
        float factor = share(tops[w][h], totals[w][h], highest), all = totals[w][h] * factor;
        for (int d = WARPS / 2; d > 0; d >>= 1) all += shuffle_xor(all, d);
        factors[w][h] = splits == 1 ? factor / all : factor;
        if (w == 0) {
            largest[h] = highest;
            sums[h] = all;
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < H * DIM / 4; i += GROUP) {
        u32 h = i / (DIM / 4), four = i % (DIM / 4);
        Floats sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            Floats v = mixed[w][h][four];
            float factor = factors[w][h];
            sum.x += v.x * factor, sum.y += v.y * factor, sum.z += v.z * factor, sum.w += v.w * factor;
        }
        size_t head = (size_t)row * n_heads + first_head + h;
        if (splits == 1) {
            ((Floats*)(out + head * DIM))[four] = sum;
            continue;
        }
        float* part = attention_part(workspace, head, split);
        ((Floats*)part)[1 + four] = sum;
        if (four == 0) {
            part[0] = largest[h];
            part[1] = sums[h];
        }
    }
    if (splits == 1 || !last_to_arrive(workspace, row * (n_heads / H) + blockIdx.x, splits)) return;
    join_parts(workspace, (size_t)row * n_heads + first_head, splits, out);
}
