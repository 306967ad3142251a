// attention for GPUs (attend.clh); head_dim == HEAD_DIM <= 8 * LANES. Formula and shapes as in attention.cl.
#include "attend.clh"

KERNEL attention_split(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, q);
    AT_IN(uchar, k_cache);
    AT_IN(uchar, v_cache);
    AT_IN(int, step);
    AT_IN(int, tables);
    AT_OUT(float, out);
    AT_SHARED(uint, workspace);
    __local float4 shared[LOCAL_QUADS];
    __local float scratch[GROUP];
    __local uint arrived;
    const uint lid = get_local_id(0), lane = lid % LANES, group = get_group_id(0), t = get_group_id(1);
    const int position = step[4 * t + 1];
    const ulong first = ((ulong)t * n_heads + group * HEADS) * HEAD_DIM;
    if (position < 0) {
        for (uint i = lid; i < HEADS * HEAD_DIM; i += GROUP) out[first + i] = 0;
        return;
    }
    const span_of span = span_of_split(position, get_group_id(2));
    if (span.split >= span.splits) return;
    float8 query[HEADS];
    UNROLL
    for (uint h = 0; h < HEADS; ++h) query[h] = head_values(q + first + h * HEAD_DIM, lane) * (scale * M_LOG2E_F);
    attend(query, k_cache, v_cache, tables + (ulong)step[4 * t + 3] * max_blocks, out + first, span,
           group * HEADS / (n_heads / n_kv_heads), n_kv_heads, row_bytes, t, group, n_heads / HEADS, workspace, shared,
           scratch, &arrived);
}
