// rope_store_kv for f16 caches, pairs (j, j + D/2) and head_dim a multiple of 4, the case of most models.
// One warp per head, TILE_N heads per block; a lane rotates two neighbouring pairs.
#include "prelude.cuh"
#include "rope_element.cuh"

struct alignas(8) Two {
    float a, b;
};

__device__ inline u32 halves(Two v) { return float_to_half(v.a) | (u32)float_to_half(v.b) << 16; }

KERNEL rope_store_kv(const float* qkv, const Row* step, const CosSin* rope, const Two* q_gamma, const Two* k_gamma,
                     float* q, u32* k_cache, u32* v_cache, u32 rows, u32 n_heads, u32 n_kv_heads, u32 head_dim,
                     u32 row_bytes, float eps) {
    let_next_start();
    u32 head = blockIdx.x * TILE_N + threadIdx.x / 32, row = blockIdx.y, heads = n_heads + 2 * n_kv_heads;
    Row now = step[row];
    wait_for_previous();
    if (head >= heads) return;
    bool is_q = head < n_heads, is_v = head >= n_heads + n_kv_heads;
    if (!is_q && (now.position < 0 || now.slot < 0)) return;
    const Two* x = (const Two*)(qkv + ((size_t)row * heads + head) * head_dim);
    const CosSin* angles = rope + (size_t)max(now.position, 0) * (head_dim / 2);
    Two* turned = (Two*)(q + ((size_t)row * n_heads + head) * head_dim);
    u32 slot = (u32)max(now.slot, 0), kv_head = head - n_heads - (is_v ? n_kv_heads : 0);
    size_t cache_row = ((size_t)(slot / KV_BLOCK) * n_kv_heads + kv_head) * KV_BLOCK + slot % KV_BLOCK;
    u32* out = (is_v ? v_cache : k_cache) + (is_q ? 0 : cache_row * (row_bytes / 4));
    const Two* gamma = is_q ? q_gamma : k_gamma;
    float inverse = 1.0f;
    if (QKNORM && !is_v) {
        float squares = 0.0f;
        for (u32 i = threadIdx.x % 32; i < head_dim / 2; i += 32) squares += x[i].a * x[i].a + x[i].b * x[i].b;
        inverse = head_inverse(warp_sum(squares), head_dim, eps);
    }
    for (u32 i = threadIdx.x % 32; i < head_dim / 4; i += 32) {
        Two low = x[i], high = x[i + head_dim / 4];
        if (!is_v) {
            if (QKNORM) {
                Two g = gamma[i], h = gamma[i + head_dim / 4];
                low = Two{low.a * inverse * g.a, low.b * inverse * g.b};
                high = Two{high.a * inverse * h.a, high.b * inverse * h.b};
            }
            CosSin c = angles[2 * i], d = angles[2 * i + 1];
            Two first = low;
            low = Two{first.a * c.cos - high.a * c.sin, first.b * d.cos - high.b * d.sin};
            high = Two{high.a * c.cos + first.a * c.sin, high.b * d.cos + first.b * d.sin};
        }
        if (is_q) {
            turned[i] = low;
            turned[i + head_dim / 4] = high;
        } else {
            out[i] = halves(low);
            out[i + head_dim / 4] = halves(high);
        }
    }
}
