// attention with SPLITS threadgroups that share the positions of a row, and one more that merges their results.
// workspace: see attended.h; other shapes as in attention.metal.
#include "numbers.h"
#include "cache_rows.h"
#include "attend.h"
#include "attended.h"
kernel void attention_split(device const float *q [[buffer(0)]], device const uint *k_cache [[buffer(1)]],
                            device const uint *v_cache [[buffer(2)]], device const int4 *step [[buffer(3)]],
                            device const int *tables [[buffer(4)]], device float *out [[buffer(5)]], device float *workspace [[buffer(6)]],
                            constant Params &p [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],
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
    uint2 range = share_of(uint(max(row.y + 1, 0)), group.z);
    attend_cache(state, rows, range.x, range.y, queries, weights + tid / 32 * WEIGHTS, p.scale, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    gather(state, queries, found, tid);
    keep(state, queries, workspace + first * SPLITS * (HEAD_DIM + 2), group.z, tid);
}

kernel void attention_merge(device const float *q [[buffer(0)]], device const uint *k_cache [[buffer(1)]],
                            device const uint *v_cache [[buffer(2)]], device const int4 *step [[buffer(3)]],
                            device const int *tables [[buffer(4)]], device float *out [[buffer(5)]], device float *workspace [[buffer(6)]],
                            constant Params &p [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],
                            uint tid [[thread_index_in_threadgroup]]) {
    uint first = group.y * p.n_heads + group.x * TILE_N;
    merge_row(workspace + first * SPLITS * (HEAD_DIM + 2), step[group.y].y >= 0, out + first * HEAD_DIM, tid);
}
