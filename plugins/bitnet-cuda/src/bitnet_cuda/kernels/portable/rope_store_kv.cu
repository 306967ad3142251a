// Norms (QKNORM 1) and rotates the q and k heads of qkv[T, n_heads + 2 n_kv_heads, D] by rope[position, D/2, (cos,
// sin)]. Writes q[T, n_heads, D], and k and v to the caches: the row of (slot, head) is at byte ((slot / 64 *
// n_kv_heads + head) * 64 + slot % 64) * row_bytes.
// One block per head and row.
#include "prelude.cuh"
#include "rope_element.cuh"

KERNEL rope_store_kv(const float* qkv, const Row* step, const CosSin* rope, const float* q_gamma, const float* k_gamma,
                     float* q, u32* k_cache, u32* v_cache, u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim,
                     u32 row_bytes, float eps) {
    __shared__ float scratch[GROUP / 32];
    let_next_start();
    wait_for_previous();
    u32 head = blockIdx.x, row = blockIdx.y;
    const float* x = qkv + ((size_t)row * (n_heads + 2 * n_kv_heads) + head) * head_dim;
    int position = step[row].position, slot = step[row].slot;
    const CosSin* angles = rope + (size_t)max(position, 0) * (head_dim / 2);
    Head h = {x, head < n_heads ? q_gamma : k_gamma, 1.0f};
    if (QKNORM && head < n_heads + n_kv_heads) {
        float squares = 0.0f;
        for (u32 d = threadIdx.x; d < head_dim; d += GROUP) squares += x[d] * x[d];
        h.inverse = head_inverse(group_sum(squares, scratch), head_dim, eps);
    }
    if (head < n_heads) {
        for (u32 d = threadIdx.x; d < head_dim; d += GROUP)
            q[((size_t)row * n_heads + head) * head_dim + d] = rotated(h, angles, d, head_dim);
        return;
    }
    if (position < 0 || slot < 0) return;
    bool is_k = head < n_heads + n_kv_heads;
    u32 kv_head = head - n_heads - (is_k ? 0 : n_kv_heads);
    size_t cache_row = ((size_t)slot / KV_BLOCK * n_kv_heads + kv_head) * KV_BLOCK + slot % KV_BLOCK;
    u32* out = (is_k ? k_cache : v_cache) + cache_row * (row_bytes / 4);
    auto element = [&](u32 d) { return is_k ? rotated(h, angles, d, head_dim) : d < head_dim ? x[d] : 0.0f; };
    float factor = 0.0f;
    if (KV == 2) {
        float largest = 0.0f;
        for (u32 d = threadIdx.x; d < head_dim; d += GROUP)
            largest = fmaxf(largest, fabsf(element(d)));
        largest = group_max(largest, scratch);
        factor = largest > 0.0f ? 127.0f / largest : 0.0f;
        if (threadIdx.x == 0) out[0] = __float_as_uint(largest / 127.0f);
        out += 1;
    }
    const u32 per_word = KV == 0 ? 1 : KV == 1 ? 2 : 4;
    for (u32 i = threadIdx.x; i * per_word < head_dim; i += GROUP) {
        u32 word = 0;
        if (KV == 0)
            word = __float_as_uint(element(i));
        else if (KV == 1)
            word = float_to_half(element(2 * i)) |
                   (u32)float_to_half(element(2 * i + 1)) << 16;
        else
            for (u32 j = 0; j < 4; j++)
                word |= ((u32)(int)rintf(element(4 * i + j) * factor) & 255u) << (8 * j);
        out[i] = word;
    }
}
