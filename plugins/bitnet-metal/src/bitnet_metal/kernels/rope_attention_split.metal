// rope_attention with SPLITS threadgroups that share the positions of a row, and one more that merges their results.
// workspace: see attended.h; other shapes as in rope_attention.metal.
#include "numbers.h"
#include "cache_rows.h"
#include "turn.h"
#include "attend.h"
#include "own_heads.h"
#include "attended.h"
kernel void rope_attention_split(device const float *qkv [[buffer(0)]], device const int4 *step [[buffer(1)]],
                                 device const float2 *rope [[buffer(2)]], device const float *q_gamma [[buffer(3)]],
                                 device const float *k_gamma [[buffer(4)]], device uint *k_cache [[buffer(5)]],
                                 device uint *v_cache [[buffer(6)]], device const int *tables [[buffer(7)]],
                                 device float *out [[buffer(8)]], device float *workspace [[buffer(9)]],
                                 constant Params &p [[buffer(10)]],
                                 uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float2 queries[QUERIES];
    threadgroup float weights[WEIGHTS * GROUPS];
    threadgroup float found[2 * HEADS * GROUPS];
    threadgroup uint own_key[OWN];
    threadgroup uint own_value[OWN];
    int4 row = step[group.y];
    bool used = row.y >= 0 && row.z >= 0;
    uint first = group.y * p.n_heads + group.x * TILE_N, shared_by = p.n_heads / p.n_kv_heads;
    uint kv_head = group.x * TILE_N / shared_by, position = uint(max(row.y, 0));
    device const float *x = qkv + group.y * (p.n_heads + 2 * p.n_kv_heads) * HEAD_DIM;
    device const float2 *angles = rope + position * PAIRS;
    take_heads(x, q_gamma, k_gamma, angles, p, group.x * TILE_N, kv_head, queries, own_key, own_value, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (used && group.z == 0 && group.x * TILE_N % shared_by == 0) {
        ulong to = cache_row(uint(row.z), kv_head, p.n_kv_heads);
        for (uint i = tid; i < ROW_WORDS; i += GROUP) {
            k_cache[to + i] = own_key[i];
            v_cache[to + i] = own_value[i];
        }
    }
    Cached rows = {k_cache, v_cache, tables + uint(row.w) * p.max_blocks, kv_head, p.n_kv_heads};
    Own own = {own_key, own_value};
    Attended state;
    begin(state);
    threadgroup float *mine = weights + tid / 32 * WEIGHTS;
    uint2 range = share_of(used ? position : 0, group.z);
    attend_cache(state, rows, range.x, range.y, queries, mine, p.scale, tid);
    if (used && group.z == 0 && tid / 32 == 0) attend(state, own, position, 1, queries, mine, p.scale, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    gather(state, queries, found, tid);
    keep(state, queries, workspace + first * SPLITS * (HEAD_DIM + 2), group.z, tid);
}

kernel void rope_attention_merge(device const float *qkv [[buffer(0)]], device const int4 *step [[buffer(1)]],
                                 device const float2 *rope [[buffer(2)]], device const float *q_gamma [[buffer(3)]],
                                 device const float *k_gamma [[buffer(4)]], device uint *k_cache [[buffer(5)]],
                                 device uint *v_cache [[buffer(6)]], device const int *tables [[buffer(7)]],
                                 device float *out [[buffer(8)]], device float *workspace [[buffer(9)]],
                                 constant Params &p [[buffer(10)]],
                                 uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    uint first = group.y * p.n_heads + group.x * TILE_N;
    bool used = step[group.y].y >= 0 && step[group.y].z >= 0;
    merge_row(workspace + first * SPLITS * (HEAD_DIM + 2), used, out + first * HEAD_DIM, tid);
}
