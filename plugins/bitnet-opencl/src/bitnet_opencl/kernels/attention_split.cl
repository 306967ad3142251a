// attention for GPUs, head_dim = 8 * LANES: a group does HEADS query heads that share a key/value head, for one row, over
// one of SPLITS parts of the positions. A team of LANES work-items takes a key at a time (8 elements each) with a softmax
// of its own; teams are put together in local memory, parts by the group that arrives last. Shapes as in attention.cl;
// parts: u32[rows * groups] of arrivals (zero between launches), then f32[rows * groups * SPLITS, HEADS, HEAD_DIM + 2].
#define HEAD_DIM (8 * LANES)
#define TEAMS (WG / LANES)
#define LEAST_SPAN 32  // positions that are worth a group
#define LOWEST (-FLT_MAX)

#ifdef HAS_PTX
#define DEVICE_FENCE asm volatile("membar.gl;" ::: "memory")
#else
#define DEVICE_FENCE mem_fence(CLK_GLOBAL_MEM_FENCE)  // used where SPLITS > 1 only: tests on CPUs
#endif

// Elements 8 * lane .. 8 * lane + 7 of a cache row, without the scale of int8 rows.
inline float8 cache_values(__global const uchar *row, uint lane) {
#if KV == 0
    __global const float4 *from = (__global const float4 *)row + 2 * lane;
    return (float8)(from[0], from[1]);
#elif KV == 1
    const uint4 raw = ((__global const uint4 *)row)[lane];
    return (float8)(halves(raw.x), halves(raw.y), halves(raw.z), halves(raw.w));
#else
    __global const char4 *from = (__global const char4 *)(row + 4) + 2 * lane;
    return (float8)(convert_float4(from[0]), convert_float4(from[1]));
#endif
}
#if KV == 2
#define CACHE_SCALE(row) (*(__global const float *)(row))
#else
#define CACHE_SCALE(row) 1.0f
#endif

inline float dot8(float8 a, float8 b) {
    const float4 half_sum = fma(a.lo, b.lo, a.hi * b.hi);
    return (half_sum.x + half_sum.y) + (half_sum.z + half_sum.w);
}

GROUP __kernel void attention_split(IN(float, q), IN(uchar, k_cache), IN(uchar, v_cache), IN(int, step),
                                    IN(int, tables), OUT(float, out), const uint rows, const uint n_heads,
                                    const uint n_kv_heads, const uint head_dim, const uint row_bytes,
                                    const uint max_blocks, const float scale, __global uint *parts) {
    AT_IN(float, q);
    AT_IN(uchar, k_cache);
    AT_IN(uchar, v_cache);
    AT_IN(int, step);
    AT_IN(int, tables);
    AT_OUT(float, out);
    __local float sums[TEAMS][HEADS][HEAD_DIM], tops[TEAMS][HEADS], totals[TEAMS][HEADS], scratch[WG];
    __local uint arrived;
    const uint lid = get_local_id(0), lane = lid % LANES, team = lid / LANES;
    const uint group = get_group_id(0), head0 = group * HEADS, t = get_group_id(1), split = get_group_id(2);
    const uint kv_head = head0 / (n_heads / n_kv_heads);
    const int position = step[4 * t + 1];
    __global const int *table = tables + (ulong)step[4 * t + 3] * max_blocks;
    __global float *to = out + ((ulong)t * n_heads + head0) * HEAD_DIM;
    if (position < 0) {
        for (uint i = lid; i < HEADS * HEAD_DIM; i += WG) to[i] = 0;
        return;
    }
    const uint length = (uint)position + 1;
    const uint span = max(CEIL_DIV(length, SPLITS), (uint)LEAST_SPAN), splits = CEIL_DIV(length, span);
    if (split >= splits) return;
    const uint start = split * span, end = min(start + span, length);
    float8 query[HEADS], acc[HEADS];
    float top[HEADS], total[HEADS];
    UNROLL
    for (uint h = 0; h < HEADS; ++h) {
        __global const float4 *from = (__global const float4 *)(q + ((ulong)t * n_heads + head0 + h) * HEAD_DIM) + 2 * lane;
        query[h] = (float8)(from[0], from[1]) * (scale * M_LOG2E_F);  // so that exp2 does for exp
        acc[h] = 0;
        top[h] = LOWEST;
        total[h] = 0;
    }
    // All teams make the same number of rounds, as lanes_sum needs them all.
    for (uint first = start; first < end; first += TEAMS * KEYS) {
        float8 key[KEYS], value[KEYS];
        float key_scale[KEYS], value_scale[KEYS];
        bool valid[KEYS];
        UNROLL
        for (uint i = 0; i < KEYS; ++i) {
            const uint p = min(first + i * TEAMS + team, end - 1);
            valid[i] = first + i * TEAMS + team < end;
            const ulong at =
                cache_row(table[p / KV_BLOCK] * KV_BLOCK + (int)(p % KV_BLOCK), kv_head, n_kv_heads, row_bytes);
            key[i] = cache_values(k_cache + at, lane);
            value[i] = cache_values(v_cache + at, lane);
            key_scale[i] = CACHE_SCALE(k_cache + at);
            value_scale[i] = CACHE_SCALE(v_cache + at);
        }
        UNROLL
        for (uint h = 0; h < HEADS; ++h) {
            float score[KEYS];
            float now = top[h];
            UNROLL
            for (uint i = 0; i < KEYS; ++i) {
                score[i] = lanes_sum(dot8(query[h], key[i]), scratch, LANES) * key_scale[i];
                now = valid[i] ? fmax(now, score[i]) : now;
            }
            const float faded = exp2(top[h] - now);
            top[h] = now;
            total[h] *= faded;
            acc[h] *= faded;
            UNROLL
            for (uint i = 0; i < KEYS; ++i) {
                const float weight = valid[i] ? exp2(score[i] - now) : 0.0f;
                total[h] += weight;
                acc[h] = fma((float8)(weight * value_scale[i]), value[i], acc[h]);
            }
        }
    }
    UNROLL
    for (uint h = 0; h < HEADS; ++h) {
        vstore8(acc[h], lane, sums[team][h]);
        if (lane == 0) {
            tops[team][h] = top[h];
            totals[team][h] = total[h];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    __global uint *arrivals = parts + t * (n_heads / HEADS) + group;
    __global float *partial = (__global float *)(parts + rows * (n_heads / HEADS)) +
                              (ulong)(t * (n_heads / HEADS) + group) * SPLITS * HEADS * (HEAD_DIM + 2);
    for (uint i = lid; i < HEADS * HEAD_DIM; i += WG) {
        const uint h = i / HEAD_DIM, j = i % HEAD_DIM;
        float most = LOWEST, sum = 0, weight = 0;
        for (uint part = 0; part < TEAMS; ++part) most = fmax(most, tops[part][h]);
        for (uint part = 0; part < TEAMS; ++part) {
            const float faded = exp2(tops[part][h] - most);
            sum = fma(faded, sums[part][h][j], sum);
            weight = fma(faded, totals[part][h], weight);
        }
        if (splits == 1) {
            to[i] = sum / weight;
            continue;
        }
        __global float *mine = partial + (split * HEADS + h) * (HEAD_DIM + 2);
        mine[j] = sum;
        if (j == 0) {
            mine[HEAD_DIM] = most;
            mine[HEAD_DIM + 1] = weight;
        }
    }
    if (splits == 1) return;
    DEVICE_FENCE;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (lid == 0) arrived = atomic_inc(arrivals);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (arrived != splits - 1) return;
    DEVICE_FENCE;
    if (lid == 0) *arrivals = 0;
    for (uint i = lid; i < HEADS * HEAD_DIM; i += WG) {
        const uint h = i / HEAD_DIM, j = i % HEAD_DIM;
        volatile __global const float *from = partial + h * (HEAD_DIM + 2);
        float most = LOWEST, sum = 0, weight = 0;
        for (uint part = 0; part < splits; ++part) {
            const uint at = part * HEADS * (HEAD_DIM + 2);
            const float now = fmax(most, from[at + HEAD_DIM]), old = exp2(most - now), fresh = exp2(from[at + HEAD_DIM] - now);
            sum = fma(sum, old, fresh * from[at + j]);
            weight = fma(weight, old, fresh * from[at + HEAD_DIM + 1]);
            most = now;
        }
        to[i] = sum / weight;
    }
}
