// out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p] over positions p = 0..position[t] of the row's own sequence;
// slot of p = tables[sequence, p / 64] * 64 + p % 64; key/value head = h / (n_heads / n_kv_heads). Rows with position < 0
// produce zeros. Softmax runs online over chunks of CHUNK positions.
// q f32[rows, n_heads * head_dim]; caches: rows of KV (0 f32, 1 f16, 2 int8 with scale); step i32[rows, 4];
// tables i32[sequences, max_blocks]; out f32[rows, n_heads * head_dim]. Group: one head of one row. Scores: LANES
// work-items share a key. Values: SLICES sets of work-items take every SLICES-th position each; a work-item owns the
// elements lid % SPREAD + i * SPREAD, i < OWNED, of the head.
#define SLICES (GROUP / SPREAD)

// Returns element j of a cache row, without the scale of int8 rows.
INLINE float cache_value(__global const uchar *row, uint j) {
#if KV == 0
    return ((__global const float *)row)[j];
#elif KV == 1
    return vload_half(j, (__global const half *)row);
#else
    return (float)as_char(row[4 + j]);
#endif
}
INLINE float cache_scale(__global const uchar *row) {
#if KV == 2
    return *(__global const float *)row;
#else
    return 1.0f;
#endif
}

KERNEL attention(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, q);
    AT_IN(uchar, k_cache);
    AT_IN(uchar, v_cache);
    AT_IN(int, step);
    AT_IN(int, tables);
    AT_OUT(float, out);
    __local float query[SPREAD * OWNED], weights[CHUNK], scratch[GROUP], scratch_max[GROUP];
    __local uint slots[CHUNK];
    const uint lid = get_local_id(0), head = get_group_id(0), t = get_group_id(1);
    const uint kv_head = head / (n_heads / n_kv_heads);
    const uint lane = lid % LANES, slice = lid / SPREAD, column = lid % SPREAD;
    const int position = step[4 * t + 1];
    __global const int *table = tables + (ulong)step[4 * t + 3] * max_blocks;
    __global float *to = out + ((ulong)t * n_heads + head) * head_dim;
    if (position < 0) {
        for (uint j = lid; j < head_dim; j += GROUP) to[j] = 0;
        return;
    }
    for (uint j = lid; j < head_dim; j += GROUP) query[j] = q[((ulong)t * n_heads + head) * head_dim + j];
    float acc[OWNED];
    UNROLL
    for (uint i = 0; i < OWNED; ++i) acc[i] = 0;
    float largest = -INFINITY, total = 0;
    const uint length = (uint)position + 1;
    for (uint start = 0; start < length; start += CHUNK) {
        const uint count = min((uint)CHUNK, length - start);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < count; i += GROUP) {
            const uint p = start + i;
            slots[i] = (uint)table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        // All lanes do the same number of rounds, since lanes_sum needs all lanes.
        for (uint first = 0; first < count; first += GROUP / LANES) {
            const uint i = first + lid / LANES;
            float dot = 0;
            if (i < count) {
                __global const uchar *row = k_cache + cache_row(slots[i], kv_head, n_kv_heads, row_bytes);
                for (uint j = lane; j < head_dim; j += LANES) dot = fma(query[j], cache_value(row, j), dot);
                dot *= cache_scale(row);
            }
            dot = lanes_sum(dot, scratch, LANES);
            if (lane == 0 && i < count) weights[i] = dot * scale;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        float chunk_largest = -INFINITY;
        for (uint i = lid; i < count; i += GROUP) chunk_largest = MAX_OF(weights[i], chunk_largest);
        const float now_largest = fmax(largest, group_max(chunk_largest, scratch_max));
        float chunk_total = 0;
        for (uint i = lid; i < count; i += GROUP) {
            const float weight = exp(weights[i] - now_largest);
            weights[i] = weight;
            chunk_total += weight;
        }
        chunk_total = group_sum(chunk_total, scratch);  // its barriers also publish the weights
        const float faded = exp(largest - now_largest);
        total = total * faded + chunk_total;
        largest = now_largest;
        UNROLL
        for (uint i = 0; i < OWNED; ++i) acc[i] *= faded;
        if (slice < SLICES)
            for (uint i = slice; i < count; i += SLICES) {
                __global const uchar *row = v_cache + cache_row(slots[i], kv_head, n_kv_heads, row_bytes);
                const float weight = weights[i] * cache_scale(row);
                UNROLL
                for (uint o = 0; o < OWNED; ++o) {
                    const uint j = column + o * SPREAD;
                    if (j < head_dim) acc[o] = fma(weight, cache_value(row, j), acc[o]);
                }
            }
    }
    UNROLL
    for (uint o = 0; o < OWNED; ++o) {
        barrier(CLK_LOCAL_MEM_FENCE);
        scratch[lid] = acc[o];
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint j = lid + o * SPREAD;
        if (lid < SPREAD && j < head_dim) {
            float sum = 0;
            for (uint s = 0; s < SLICES; ++s) sum += scratch[s * SPREAD + lid];
            to[j] = sum / total;
        }
    }
}
