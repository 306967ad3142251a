// Rotates the query and key heads of qkv = [q | k | v] by (cos, sin) = rope[position]: (a, b) -> (a cos - b sin, b cos
// + a sin), pairs (j, j + D/2), or (2j, 2j + 1) if INTERLEAVED. If QKNORM is 1, each head h is first normed: h /
// sqrt(mean(h^2) + eps) * gamma. Writes q, and k and v to the caches at the row's slot. Rows with position < 0 or slot
// < 0 store nothing.
// qkv f32[rows, (n_heads + 2 n_kv_heads) * head_dim]; step i32[rows, 4]; rope f32[positions, head_dim / 2, 2]; q_gamma,
// k_gamma f32[head_dim]; q f32[rows, n_heads * head_dim]; caches: rows of KV (0 f32, 1 f16, 2 int8 with scale).
// Group: TILE_N heads of one row in sequence.
#if INTERLEAVED
#define FIRST(j) (2 * (j))
#define SECOND(j) (2 * (j) + 1)
#else
#define FIRST(j) (j)
#define SECOND(j) ((j) + half_dim)
#endif
KERNEL rope_store_kv(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, qkv);
    AT_IN(int, step);
    AT_IN(float, rope);
    AT_IN(float, q_gamma);
    AT_IN(float, k_gamma);
    AT_OUT(float, q);
    AT_OUT(uchar, k_cache);
    AT_OUT(uchar, v_cache);
    __local float scratch[GROUP], scratch_max[GROUP];
    const uint t = get_group_id(1), lid = get_local_id(0);
    const uint heads = n_heads + 2 * n_kv_heads, half_dim = head_dim / 2;
    const uint begin = get_group_id(0) * TILE_N, end = min(begin + TILE_N, heads);
    const int position = step[4 * t + 1], slot = step[4 * t + 2];
    __global const float *angle = rope + (ulong)max(position, 0) * head_dim;
    for (uint head = begin; head < end; ++head) {
        __global const float *from = qkv + ((ulong)t * heads + head) * head_dim;
        __global const float *gamma = head < n_heads ? q_gamma : k_gamma;
        const bool turned = head < n_heads + n_kv_heads;
        const bool query = head < n_heads, stores = !query && position >= 0 && slot >= 0;
        const uint kv_head = query ? 0 : (head - n_heads) % n_kv_heads;
        __global uchar *row = (turned ? k_cache : v_cache) + cache_row(stores ? slot : 0, kv_head, n_kv_heads, row_bytes);
        __global float *to = q + ((ulong)t * n_heads + head) * head_dim;
#if QKNORM  // barriers are unconditional, since some compilers mishandle them in branches
        float sum = 0;
        for (uint i = lid; i < head_dim; i += GROUP) sum = fma(from[i], from[i], sum);
        const float mean = group_sum(sum, scratch) / (float)head_dim;
        const float inverse = isfinite(mean) ? 1.0f / sqrt(mean + eps) : NAN;
        barrier(CLK_LOCAL_MEM_FENCE);
#define NORMED(i) (turned ? from[i] * inverse * gamma[i] : from[i])
#else
#define NORMED(i) from[i]
#endif
#define ROTATED(a, b, j)                                                    \
    float a = NORMED(FIRST(j)), b = NORMED(SECOND(j));                      \
    if (turned) {                                                           \
        const float c = angle[2 * (j)], s = angle[2 * (j) + 1], a0 = a;     \
        a = a0 * c - b * s;                                                 \
        b = b * c + a0 * s;                                                 \
    }
#if KV == 2
        float largest = 0;
        for (uint j = lid; j < half_dim; j += GROUP) {
            ROTATED(a, b, j)
            largest = fmax(largest, fmax(fabs(a), fabs(b)));
        }
        largest = group_max(largest, scratch_max);
        barrier(CLK_LOCAL_MEM_FENCE);
        const float inverse_size = largest > 0 ? 127.0f / largest : 0.0f;
        if (lid == 0 && stores) {
            *(__global float *)row = largest / 127.0f;
            for (uint i = 4 + head_dim; i < row_bytes; ++i) row[i] = 0;  // up to a multiple of 4
        }
#endif
        for (uint j = lid; j < half_dim; j += GROUP) {
            ROTATED(a, b, j)
            if (query) {
                to[FIRST(j)] = a;
                to[SECOND(j)] = b;
            } else if (stores) {
#if KV == 0
                ((__global float *)row)[FIRST(j)] = a;
                ((__global float *)row)[SECOND(j)] = b;
#elif KV == 1
                vstore_half_rte(a, FIRST(j), (__global half *)row);
                vstore_half_rte(b, SECOND(j), (__global half *)row);
#else
                ((__global char *)row)[4 + FIRST(j)] = convert_char_sat_rte(a * inverse_size);
                ((__global char *)row)[4 + SECOND(j)] = convert_char_sat_rte(b * inverse_size);
#endif
            }
        }
    }
}
