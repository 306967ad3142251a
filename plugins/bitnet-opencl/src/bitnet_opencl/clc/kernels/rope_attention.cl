// rope_store_kv, then attention of the rotated queries, for rows of different sequences; head_dim == HEAD_DIM <= 8 * LANES.
// The group that attends to a row's own position stores its key and value first. Rows with position < 0 or slot < 0 store nothing
// and produce zeros. Shapes as in rope_store_kv.cl and attention.cl.
#include "attend.clh"
#include "store_row.clh"

// Returns the factor of a head's norm; all work-items must call this.
INLINE float inverse_of(__global const float *head, uint lane, float eps, __local float *scratch) {
#if QKNORM
    const float8 x = head_values(head, lane);
    const float mean = lanes_sum(dot8(x, x), scratch, LANES) / (float)HEAD_DIM;
    return isfinite(mean) ? 1.0f / sqrt(mean + eps) : NAN;
#else
    return 1.0f;
#endif
}

// Returns elements 8 * lane .. 8 * lane + 7 of a head, normed.
INLINE float8 normed_values(__global const float *head, __global const float *gamma, float inverse, uint lane) {
#if QKNORM
    return head_values(head, lane) * inverse * head_values(gamma, lane);
#else
    return head_values(head, lane);
#endif
}
#if QKNORM
#define NORMED(e) (head[e] * inverse * gamma[e])
#else
#define NORMED(e) head[e]
#endif

// Returns the same elements rotated by angle f32[head_dim / 2, 2] (cos, sin); 0 past the last one.
INLINE float8 rotated(__global const float *head, __global const float *gamma, float inverse,
                      __global const float *angle, uint lane) {
#if HEAD_DIM % 16
    float8 values = 0;
    for (uint i = 0; i < 8 && 8 * lane + i < HEAD_DIM; ++i) {
        const uint e = 8 * lane + i;
#if INTERLEAVED
        const uint other = e ^ 1, j = e / 2;
        const bool is_first = e % 2 == 0;
#else
        const uint other = (e + HEAD_DIM / 2) % HEAD_DIM, j = e % (HEAD_DIM / 2);
        const bool is_first = e < HEAD_DIM / 2;
#endif
        const float c = angle[2 * j], s = angle[2 * j + 1];
        ((float *)&values)[i] = NORMED(e) * c + NORMED(other) * (is_first ? -s : s);
    }
    return values;
#else
    if (lane >= ACTIVE) return 0;
    __global const float4 *angles = (__global const float4 *)angle;
#if INTERLEAVED
    const float4 a = angles[2 * lane], b = angles[2 * lane + 1];
    const float8 c = (float8)(a.xx, a.zz, b.xx, b.zz), s = (float8)(-a.y, a.y, -a.w, a.w, -b.y, b.y, -b.w, b.w);
    const float8 own = normed_values(head, gamma, inverse, lane), other = own.s10325476;
#else
    const uint at = lane % (ACTIVE / 2);
    const float4 a0 = angles[4 * at], a1 = angles[4 * at + 1], a2 = angles[4 * at + 2], a3 = angles[4 * at + 3];
    const float8 c = (float8)(a0.xz, a1.xz, a2.xz, a3.xz);
    const float8 s = (float8)(a0.yw, a1.yw, a2.yw, a3.yw) * (lane < ACTIVE / 2 ? -1.0f : 1.0f);
    const float8 own = normed_values(head, gamma, inverse, lane);
    const float8 other = normed_values(head, gamma, inverse, (lane + ACTIVE / 2) % ACTIVE);
#endif
    return own * c + other * s;
#endif
}

KERNEL rope_attention(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, qkv);
    AT_IN(int, step);
    AT_IN(float, rope);
    AT_IN(float, q_gamma);
    AT_IN(float, k_gamma);
    AT_OUT(uchar, k_cache);
    AT_OUT(uchar, v_cache);
    AT_IN(int, tables);
    AT_OUT(float, out);
    AT_SHARED(uint, workspace);
    __local float4 shared[LOCAL_QUADS];
    __local float scratch[GROUP];
    __local uint arrived;
    const uint lid = get_local_id(0), lane = lid % LANES, group = get_group_id(0), t = get_group_id(1);
    const uint kv_head = group * HEADS / (n_heads / n_kv_heads);
    const int position = step[4 * t + 1], slot = step[4 * t + 2];
    const ulong first = ((ulong)t * n_heads + group * HEADS) * HEAD_DIM;
    if (position < 0 || slot < 0) {
        for (uint i = lid; i < HEADS * HEAD_DIM; i += GROUP) out[first + i] = 0;
        return;
    }
    const span_of span = span_of_split(position, get_group_id(2));
    if (span.split >= span.splits) return;
    __global const float *angle = rope + (ulong)position * HEAD_DIM;
    __global const float *heads = qkv + (ulong)t * (n_heads + 2 * n_kv_heads) * HEAD_DIM;
    float8 query[HEADS];
    UNROLL
    for (uint h = 0; h < HEADS; ++h) {
        __global const float *head = heads + (group * HEADS + h) * HEAD_DIM;
        const float inverse = inverse_of(head, lane, eps, scratch);
        query[h] = rotated(head, q_gamma, inverse, angle, lane) * (scale * M_LOG2E_F);
    }
    if (span.split == span.splits - 1) {
        const ulong row = cache_row(slot, kv_head, n_kv_heads, row_bytes);
        __global const float *key = heads + (n_heads + kv_head) * HEAD_DIM, *value = key + n_kv_heads * HEAD_DIM;
        const float inverse = inverse_of(key, lane, eps, scratch);
        store_row(rotated(key, k_gamma, inverse, angle, lane), k_cache + row, row_bytes, scratch);
        store_row(head_values(value, lane), v_cache + row, row_bytes, scratch);
        barrier(CLK_GLOBAL_MEM_FENCE);
    }
    attend(query, k_cache, v_cache, tables + (ulong)step[4 * t + 3] * max_blocks, out + first, span, kv_head,
           n_kv_heads, row_bytes, t, group, n_heads / HEADS, workspace, shared, scratch, &arrived);
}
