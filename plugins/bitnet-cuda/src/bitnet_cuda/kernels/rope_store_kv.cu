// Rotates the q and k heads of qkv[T, n_heads + 2 n_kv_heads, D] by rope[position, D/2, (cos, sin)]; writes q[T, n_heads, D]
// and k, v into the caches: row of (slot, head) at ((slot / 64 * n_kv_heads + head) * 64 + slot % 64) * row_bytes.
// One block per head and row. Heads whose size is a multiple of 4 go two neighbouring pairs at a time (f16 caches, pairs
// half a head apart: what prompts of most models have).
#include "prelude.cuh"
#include "rope_element.cuh"

struct alignas(8) Two {
    float a, b;
};

__device__ inline u32 halves(Two v) { return float_to_half(v.a) | (u32)float_to_half(v.b) << 16; }

KERNEL rope_store_kv(const float* qkv, const Row* step, const CosSin* rope, float* q, u32* k_cache, u32* v_cache,
                     u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 row_bytes) {
    __shared__ float scratch[GROUP / 32];
    let_next_start();
    wait_for_previous();
    u32 head = blockIdx.x, row = blockIdx.y;
    const float* x = qkv + ((size_t)row * (n_heads + 2 * n_kv_heads) + head) * head_dim;
    int position = step[row].position, slot = step[row].slot;
    const CosSin* angles = rope + (size_t)max(position, 0) * (head_dim / 2);
    bool is_q = head < n_heads, is_k = !is_q && head < n_heads + n_kv_heads;
    u32 kv_head = head - n_heads - (is_k ? 0 : n_kv_heads);
    size_t cache_row = ((size_t)slot / KV_BLOCK * n_kv_heads + kv_head) * KV_BLOCK + slot % KV_BLOCK;
    u32* out = (is_k ? k_cache : v_cache) + cache_row * (row_bytes / 4);
    if (!is_q && (position < 0 || slot < 0)) return;
    if (KV == 1 && !INTERLEAVED && head_dim % 4 == 0) {
        for (u32 i = threadIdx.x; i < head_dim / 4; i += GROUP) {
            Two low = ((const Two*)x)[i], high = ((const Two*)x)[i + head_dim / 4];
            if (is_q || is_k) {
                CosSin c = angles[2 * i], d = angles[2 * i + 1];
                Two first = low;
                low = Two{first.a * c.cos - high.a * c.sin, first.b * d.cos - high.b * d.sin};
                high = Two{high.a * c.cos + first.a * c.sin, high.b * d.cos + first.b * d.sin};
            }
            Two* rotated = (Two*)(q + ((size_t)row * n_heads + head) * head_dim);
            if (is_q) {
                rotated[i] = low;
                rotated[i + head_dim / 4] = high;
            } else {
                out[i] = halves(low);
                out[i + head_dim / 4] = halves(high);
            }
        }
        return;
    }
    if (is_q) {
        for (u32 d = threadIdx.x; d < head_dim; d += GROUP)
            q[((size_t)row * n_heads + head) * head_dim + d] = element(x, angles, true, d, head_dim);
        return;
    }
    float factor = 0.0f;
    if (KV == 2) {
        float largest = 0.0f;
        for (u32 d = threadIdx.x; d < head_dim; d += GROUP)
            largest = fmaxf(largest, fabsf(element(x, angles, is_k, d, head_dim)));
        largest = group_max(largest, scratch);
        factor = largest > 0.0f ? 127.0f / largest : 0.0f;
        if (threadIdx.x == 0) out[0] = __float_as_uint(largest / 127.0f);
        out += 1;
    }
    const u32 per_word = KV == 0 ? 1 : KV == 1 ? 2 : 4;
    for (u32 i = threadIdx.x; i * per_word < head_dim; i += GROUP) {
        u32 word = 0;
        if (KV == 0)
            word = __float_as_uint(element(x, angles, is_k, i, head_dim));
        else if (KV == 1)
            word = float_to_half(element(x, angles, is_k, 2 * i, head_dim)) |
                   (u32)float_to_half(element(x, angles, is_k, 2 * i + 1, head_dim)) << 16;
        else
            for (u32 j = 0; j < 4; j++)
                word |= ((u32)(int)rintf(element(x, angles, is_k, 4 * i + j, head_dim) * factor) & 255u) << (8 * j);
        out[i] = word;
    }
}
