// out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t], through the row's block table.
// One block of 128 threads per head and row. Each warp walks every fourth cache block (64 positions) with a running
// maximum of its own, two positions per lane; the four partial results are combined at the end.
#include "prelude.cuh"

#define MAX_DIM 256
#define WARPS (GROUP / 32)

__device__ inline float k_dot(const float* query, const u32* row, u32 head_dim) {
    float sum = 0.0f;
    if (KV == 0) {
        for (u32 d = 0; d < head_dim; d++) sum += query[d] * __uint_as_float(row[d]);
    } else if (KV == 1) {
        for (u32 i = 0; i < head_dim / 2; i++) {
            u32 pair = row[i];
            sum += query[2 * i] * half_to_float((u16)(pair & 0xffffu)) + query[2 * i + 1] * half_to_float((u16)(pair >> 16));
        }
    } else {
        const signed char* codes = (const signed char*)(row + 1);
        for (u32 d = 0; d < head_dim; d++) sum += query[d] * (float)codes[d];
        sum *= __uint_as_float(row[0]);
    }
    return sum;
}

__device__ inline float v_element(const u32* row, u32 d) {
    if (KV == 0) return __uint_as_float(row[d]);
    if (KV == 1) return half_to_float(((const u16*)row)[d]);
    return (float)((const signed char*)(row + 1))[d] * __uint_as_float(row[0]);
}

KERNEL attention(const float* q, const u32* k_cache, const u32* v_cache, const Row* step, const int* tables, float* out,
                 u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes, u32 max_blocks, float scale) {
    __shared__ float query[MAX_DIM], weights[WARPS][KV_BLOCK], partial[WARPS][MAX_DIM], maxima[WARPS], totals[WARPS];
    let_next_start();
    wait_for_previous();
    u32 head = blockIdx.x, row = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    size_t base = ((size_t)row * n_heads + head) * head_dim;
    int last = step[row].position;
    if (last < 0) {
        for (u32 d = threadIdx.x; d < head_dim; d += GROUP) out[base + d] = 0.0f;
        return;
    }
    const int* table = tables + (size_t)step[row].sequence * max_blocks;
    u32 row_words = row_bytes / 4, kv_head = head / (n_heads / n_kv_heads), length = (u32)last + 1;
    for (u32 d = threadIdx.x; d < head_dim; d += GROUP) query[d] = q[base + d];
    __syncthreads();
    float acc[MAX_DIM / 32], largest = minus_infinity(), total = 0.0f;
    for (int i = 0; i < MAX_DIM / 32; i++) acc[i] = 0.0f;
    for (u32 start = warp * KV_BLOCK; start < length; start += WARPS * KV_BLOCK) {
        size_t block = ((size_t)table[start / KV_BLOCK] * n_kv_heads + kv_head) * KV_BLOCK;
        u32 count = min((u32)KV_BLOCK, length - start);
        float scores[2], now = largest;
        for (int i = 0; i < 2; i++) {
            u32 p = lane + 32 * i;
            scores[i] = p < count ? k_dot(query, k_cache + (block + p) * row_words, head_dim) * scale : minus_infinity();
            now = fmaxf(now, scores[i]);
        }
        now = warp_max(now);
        float sum = 0.0f;
        for (int i = 0; i < 2; i++) {
            u32 p = lane + 32 * i;
            float weight = p < count ? expf(scores[i] - now) : 0.0f;
            weights[warp][p] = weight;
            sum += weight;
        }
        __syncwarp();
        float rescale = largest == now ? 1.0f : expf(largest - now);
        total = total * rescale + warp_sum(sum);
        for (int i = 0; i < MAX_DIM / 32; i++) {
            u32 d = lane + 32 * i;
            if (d >= head_dim) break;
            float mixed = acc[i] * rescale;
            for (u32 p = 0; p < count; p++) mixed += weights[warp][p] * v_element(v_cache + (block + p) * row_words, d);
            acc[i] = mixed;
        }
        largest = now;
        __syncwarp();
    }
    for (int i = 0; i < MAX_DIM / 32; i++)
        if (lane + 32 * i < head_dim) partial[warp][lane + 32 * i] = acc[i];
    if (lane == 0) {
        maxima[warp] = largest;
        totals[warp] = total;
    }
    __syncthreads();
    float top = minus_infinity(), sum = 0.0f;
    for (int i = 0; i < WARPS; i++)
        if (totals[i] != 0.0f) top = fmaxf(top, maxima[i]);
    for (u32 d = threadIdx.x; d < head_dim; d += GROUP) {
        float mixed = 0.0f;
        sum = 0.0f;
        for (int i = 0; i < WARPS; i++) {
            if (totals[i] == 0.0f) continue;  // a warp without positions; NaN is not equal to zero
            float rescale = maxima[i] == top ? 1.0f : expf(maxima[i] - top);
            mixed += partial[i][d] * rescale;
            sum += totals[i] * rescale;
        }
        out[base + d] = mixed / sum;
    }
}
