// matmul_ternary_rope for prompts (compute capability 9.0; f16 caches, 128 elements a head, pairs half a head apart):
// y[t, n] = (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n], rows n of w[outs, width / 4] being the heads [q | k | v];
// those of queries and keys are rotated by rope[position], queries[T, n_heads, 128] and the caches written. A tile has M_TILES heads,
// copied so that a lane has both elements of its pairs.
#include "prelude.cuh"
#define ADD 0
#define HEADS
#include "row_stream.cuh"
#define QKNORM 0
#include "rope_element.cuh"

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary_rope(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, const Row* step,
                        const CosSin* rope, float* __restrict__ queries, u16* __restrict__ k_cache, u16* __restrict__ v_cache, u32 rows,
                        u32 outs, u32 width, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes,
                        const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens) {
    auto store = [=](int (*acc)[SPAN_T / 2], const Factors* factors, const Sums* sums, u32 n, u32 first) {
        u32 g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            u32 row = n - OWN * g + 16 * m, head = row / 128, j = row % 128 / 2 + g;  // a warp's 16 rows: 8 of each half of a head
            if (row >= outs) continue;
            bool is_q = head < n_heads, is_v = head >= n_heads + n_kv_heads;
            u32 kv_head = head - n_heads - (is_v ? n_kv_heads : 0);
            u16* cache = is_v ? v_cache : k_cache;
            float low_scale = wscale[head * 128 + j], high_scale = wscale[head * 128 + 64 + j];
#pragma unroll
            for (int i = 0; i < SPAN_T / 8; i += 2) {  // tables are read for some tokens at once, before they are written
                int position[4], slot[4];
                CosSin c[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    Row now = step[min(first + 8 * (i + e / 2) + e % 2, rows - 1)];
                    position[e] = now.position, slot[e] = now.slot;
                }
#pragma unroll
                for (int e = 0; e < 4; e++) c[e] = is_v ? CosSin{1.0f, 0.0f} : rope[(size_t)max(position[e], 0) * 64 + j];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    u32 token = first + 8 * (i + e / 2) + e % 2;
                    const Sums& sum_of = sums[4 * (i + e / 2)];
                    const Factors& of = factors[4 * (i + e / 2)];
                    int sum = e % 2 ? sum_of.odd : sum_of.even;
                    float factor = e % 2 ? of.odd : of.even;
                    const int* its = acc[m] + 4 * (i + e / 2) + e % 2;
                    float a = (float)(its[0] - sum) * factor * low_scale, b = (float)(its[2] - sum) * factor * high_scale;
                    float low = is_v ? a : a * c[e].cos - b * c[e].sin, high = is_v ? b : b * c[e].cos + a * c[e].sin;
                    if (token >= rows) continue;
                    if (is_q) {
                        float* to = queries + ((size_t)token * n_heads + head) * 128 + j;
                        to[0] = low, to[64] = high;
                    } else if (position[e] >= 0 && slot[e] >= 0) {
                        size_t at = ((size_t)(slot[e] / KV_BLOCK) * n_kv_heads + kv_head) * KV_BLOCK + slot[e] % KV_BLOCK;
                        u16* to = cache + at * (row_bytes / 2) + j;
                        to[0] = float_to_half(low), to[64] = float_to_half(high);
                    }
                }
            }
        }
    };
    stream_tiles(scale, qsum, rows, outs, width, weights, tokens, store);
}
