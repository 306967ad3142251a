// out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t], through the row's block table.
// A block of 128 threads computes H = TILE_N query heads of one key/value head for one row, so that a cached row is
// read once for all of them. Each warp processes every fourth cache block (64 positions) with its own running maxima,
// two positions per lane; the four partial results are combined at the end.
#include "prelude.cuh"

#define H TILE_N
#define MAX_DIM 256
#define WARPS (GROUP / 32)

// Four elements of each query head, from d on, times the same elements of a cached row.
__device__ inline void add_products(float* sums, const float (*query)[MAX_DIM], u32 d, float a, float b, float c, float e) {
#pragma unroll
    for (int h = 0; h < H; h++) {
        Floats q = *(const Floats*)(query[h] + d);
        sums[h] += q.x * a + q.y * b + q.z * c + q.w * e;
    }
}

// sums[h] = query[h] . cached row. head_dim is even; query elements from head_dim on are 0.
__device__ inline void k_dots(float* sums, const float (*query)[MAX_DIM], const u32* row, u32 head_dim) {
#pragma unroll
    for (int h = 0; h < H; h++) sums[h] = 0.0f;
    if (KV == 1 && head_dim % 8 == 0) {
        const Words* words = (const Words*)row;
        for (u32 i = 0; i < head_dim / 8; i++) {
            Words v = words[i];
            add_products(sums, query, 8 * i, half_to_float((u16)v.x), half_to_float((u16)(v.x >> 16)),
                         half_to_float((u16)v.y), half_to_float((u16)(v.y >> 16)));
            add_products(sums, query, 8 * i + 4, half_to_float((u16)v.z), half_to_float((u16)(v.z >> 16)),
                         half_to_float((u16)v.w), half_to_float((u16)(v.w >> 16)));
        }
        return;
    }
    for (u32 d = 0; d < head_dim; d++) {
        float k = KV == 0   ? __uint_as_float(row[d])
                  : KV == 1 ? half_to_float(((const u16*)row)[d])
                            : (float)((const signed char*)(row + 1))[d];
#pragma unroll
        for (int h = 0; h < H; h++) sums[h] += query[h][d] * k;
    }
    if (KV == 2)
#pragma unroll
        for (int h = 0; h < H; h++) sums[h] *= __uint_as_float(row[0]);
}

__device__ inline float v_element(const u32* row, u32 d) {
    if (KV == 0) return __uint_as_float(row[d]);
    if (KV == 1) return half_to_float(((const u16*)row)[d]);
    return (float)((const signed char*)(row + 1))[d] * __uint_as_float(row[0]);
}

KERNEL attention(const float* q, const u32* k_cache, const u32* v_cache, const Row* step, const int* tables, float* out,
                 u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale) {
    __shared__ Floats queries[H][MAX_DIM / 4];
    __shared__ float weights[WARPS][H][KV_BLOCK], partial[WARPS][H][MAX_DIM], maxima[WARPS][H], totals[WARPS][H];
    let_next_start();
    wait_for_previous();
    u32 head = blockIdx.x * H, row = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    size_t base = ((size_t)row * n_heads + head) * head_dim;
    int last = step[row].position;
    if (last < 0) {
        for (u32 d = threadIdx.x; d < H * head_dim; d += GROUP) out[base + d] = 0.0f;
        return;
    }
    float (*query)[MAX_DIM] = (float (*)[MAX_DIM])queries;
    const int* table = tables + (size_t)step[row].sequence * max_blocks;
    u32 row_words = row_bytes / 4, kv_head = head / (n_heads / n_kv_heads), length = (u32)last + 1;
    for (u32 d = threadIdx.x; d < H * head_dim; d += GROUP) query[d / head_dim][d % head_dim] = q[base + d];
    __syncthreads();
    float acc[H][MAX_DIM / 32], largest[H], total[H];
#pragma unroll
    for (int h = 0; h < H; h++) {
        largest[h] = minus_infinity(), total[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < MAX_DIM / 32; i++) acc[h][i] = 0.0f;
    }
    for (u32 start = warp * KV_BLOCK; start < length; start += WARPS * KV_BLOCK) {
        size_t block = ((size_t)table[start / KV_BLOCK] * n_kv_heads + kv_head) * KV_BLOCK;
        u32 count = min((u32)KV_BLOCK, length - start);
        float scores[2][H];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 p = lane + 32 * i;
            if (p < count) k_dots(scores[i], query, k_cache + (block + p) * row_words, head_dim);
#pragma unroll
            for (int h = 0; h < H; h++) scores[i][h] = p < count ? scores[i][h] * scale : minus_infinity();
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            float now = fmaxf(largest[h], warp_max(fmaxf(scores[0][h], scores[1][h]))), sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float weight = lane + 32 * i < count ? expf(scores[i][h] - now) : 0.0f;
                weights[warp][h][lane + 32 * i] = weight;
                sum += weight;
            }
            float rescale = largest[h] == now ? 1.0f : expf(largest[h] - now);
            total[h] = total[h] * rescale + warp_sum(sum);
#pragma unroll
            for (int i = 0; i < MAX_DIM / 32; i++) acc[h][i] *= rescale;
            largest[h] = now;
        }
        sync_warp();
#pragma unroll
        for (int i = 0; i < MAX_DIM / 32; i++) {
            u32 d = lane + 32 * i;
            if (d >= head_dim) break;
            for (u32 p = 0; p < count; p++) {
                float v = v_element(v_cache + (block + p) * row_words, d);
#pragma unroll
                for (int h = 0; h < H; h++) acc[h][i] += weights[warp][h][p] * v;
            }
        }
        sync_warp();
    }
#pragma unroll
    for (int h = 0; h < H; h++) {
#pragma unroll
        for (int i = 0; i < MAX_DIM / 32; i++)
            if (lane + 32 * i < head_dim) partial[warp][h][lane + 32 * i] = acc[h][i];
        if (lane == 0) {
            maxima[warp][h] = largest[h];
            totals[warp][h] = total[h];
        }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < H * head_dim; at += GROUP) {
        u32 h = at / head_dim, d = at % head_dim;
        float top = minus_infinity(), mixed = 0.0f, sum = 0.0f;
        for (int i = 0; i < WARPS; i++)
            if (totals[i][h] != 0.0f) top = fmaxf(top, maxima[i][h]);
        for (int i = 0; i < WARPS; i++) {
            if (totals[i][h] == 0.0f) continue;  // this warp had no positions; a NaN total is not equal to zero
            float rescale = maxima[i][h] == top ? 1.0f : expf(maxima[i][h] - top);
            mixed += partial[i][h][d] * rescale;
            sum += totals[i][h] * rescale;
        }
        out[base + at] = mixed / sum;
    }
}
