// out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p] over positions p = 0..position[t]; one threadgroup per
// TILE_N heads of a row. Rows with position < 0 produce zeros.
// q f32[rows, n_heads head_dim]; k_cache, v_cache: cache rows; step i32[rows, 4]; tables i32[sequences, max_blocks];
// out f32[rows, n_heads head_dim].
#include "numbers.h"
#include "cache_rows.h"
#include "attend.h"
#include "attended.h"
kernel void attention(device const float *q [[buffer(0)]], device const uint *k_cache [[buffer(1)]],
                      device const uint *v_cache [[buffer(2)]], device const int4 *step [[buffer(3)]],
                      device const int *tables [[buffer(4)]], device float *out [[buffer(5)]],
                      constant Params &p [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                      uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float2 queries[QUERIES];
    threadgroup float weights[WEIGHTS * GROUPS];
    threadgroup float found[2 * HEADS * GROUPS];
    int4 row = step[group.y];
    uint first = group.y * p.n_heads + group.x * TILE_N, kv_head = group.x * TILE_N / (p.n_heads / p.n_kv_heads);
    for (uint i = tid; i < TILE_N * PAIRS; i += GROUP) queries[i] = ((device const float2 *)(q + first * HEAD_DIM))[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Cached rows = {k_cache, v_cache, tables + uint(row.w) * p.max_blocks, kv_head, p.n_kv_heads};
    Attended state;
    begin(state);
    uint end = uint(max(row.y + 1, 0));
    attend_cache(state, rows, 0, end, queries, weights + tid / 32 * WEIGHTS, p.scale, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    gather(state, queries, found, tid);
    write_out(state, queries, row.y >= 0, out + first * HEAD_DIM, tid);
}
