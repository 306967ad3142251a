// Rotates (and norms, if QKNORM is 1) the query and key heads of qkv (turn.h); writes q, and k and v to the caches at
// the row's slot. One simdgroup per head, TILE_N of them per threadgroup; rows with position < 0 or slot < 0 store
// nothing.
// qkv f32[rows, (n_heads + 2 n_kv_heads) head_dim]; step i32[rows, 4]; rope f32[positions, head_dim / 2, 2]; q_gamma,
// k_gamma f32[head_dim]; q f32[rows, n_heads head_dim]; k_cache, v_cache: cache rows.
#include "numbers.h"
#include "cache_rows.h"
#include "turn.h"
kernel void rope_store_kv(device const float *qkv [[buffer(0)]], device const int4 *step [[buffer(1)]],
                          device const float2 *rope [[buffer(2)]], device const float *q_gamma [[buffer(3)]],
                          device const float *k_gamma [[buffer(4)]], device float *q [[buffer(5)]],
                          device uint *k_cache [[buffer(6)]], device uint *v_cache [[buffer(7)]],
                          constant Params &p [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                          uint tid [[thread_index_in_threadgroup]]) {
    uint lane = tid % 32, which = group.x * TILE_N + tid / 32, heads = p.n_heads + 2 * p.n_kv_heads;
    if (which >= heads) return;
    int4 row = step[group.y];
    device const float *x = qkv + (group.y * heads + which) * HEAD_DIM;
    device const float2 *angles = rope + uint(max(row.y, 0)) * PAIRS;
    if (which < p.n_heads) {
        write_floats(turned(x, q_gamma, angles, p.eps, lane), q + (group.y * p.n_heads + which) * HEAD_DIM, lane);
        return;
    }
    if (row.y < 0 || row.z < 0) return;
    uint head = which - p.n_heads;
    if (head < p.n_kv_heads) {
        store(turned(x, k_gamma, angles, p.eps, lane), k_cache + cache_row(uint(row.z), head, p.n_kv_heads), lane);
    } else {
        store(plain(x, lane), v_cache + cache_row(uint(row.z), head - p.n_kv_heads, p.n_kv_heads), lane);
    }
}
