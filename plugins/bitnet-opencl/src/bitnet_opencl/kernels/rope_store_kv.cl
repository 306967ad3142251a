// Rotates the query and key heads of qkv = [q | k | v] by (cos, sin) = rope[position]: (a, b) -> (a cos - b sin,
// b cos + a sin), pair j = (j, j + D/2), or (2j, 2j + 1) where INTERLEAVED; writes q, and k and v into the caches at the
// row's slot. Rows with position < 0 or slot < 0 store nothing.
// qkv f32[rows, (n_heads + 2 n_kv_heads) * head_dim]; step i32[rows, 4]; rope f32[positions, head_dim / 2, 2];
// q f32[rows, n_heads * head_dim]; caches: rows of KV (0 f32, 1 f16, 2 int8 with scale). Group: one head of one row.
GROUP __kernel void rope_store_kv(IN(float, qkv), IN(int, step), IN(float, rope), OUT(float, q), OUT(uchar, k_cache),
                                  OUT(uchar, v_cache), const uint rows, const uint n_heads, const uint n_kv_heads,
                                  const uint head_dim, const uint row_bytes) {
    AT_IN(float, qkv);
    AT_IN(int, step);
    AT_IN(float, rope);
    AT_OUT(float, q);
    AT_OUT(uchar, k_cache);
    AT_OUT(uchar, v_cache);
    const uint head = get_group_id(0), t = get_group_id(1), lid = get_local_id(0);
    const uint heads = n_heads + 2 * n_kv_heads, half_dim = head_dim / 2;
    const int position = step[4 * t + 1], slot = step[4 * t + 2];
    __global const float *from = qkv + ((ulong)t * heads + head) * head_dim;
    __global const float *angle = rope + (ulong)max(position, 0) * head_dim;
    const bool rotate_it = head < n_heads + n_kv_heads;
#if INTERLEAVED
#define FIRST(j) (2 * (j))
#define SECOND(j) (2 * (j) + 1)
#else
#define FIRST(j) (j)
#define SECOND(j) ((j) + half_dim)
#endif
#define ROTATED(a, b, j)                                                    \
    float a = from[FIRST(j)], b = from[SECOND(j)];                          \
    if (rotate_it) {                                                        \
        const float c = angle[2 * (j)], s = angle[2 * (j) + 1], a0 = a;     \
        a = a0 * c - b * s;                                                 \
        b = b * c + a0 * s;                                                 \
    }
#if KV == 2  // before any return: not every compiler gets a barrier behind one right
    __local float scratch[WG];
    float largest = 0;
    for (uint j = lid; j < half_dim; j += WG) {
        ROTATED(a, b, j)
        largest = fmax(largest, fmax(fabs(a), fabs(b)));
    }
    largest = group_max(largest, scratch);
#endif
    if (head < n_heads) {
        __global float *to = q + ((ulong)t * n_heads + head) * head_dim;
        for (uint j = lid; j < half_dim; j += WG) {
            ROTATED(a, b, j)
            to[FIRST(j)] = a;
            to[SECOND(j)] = b;
        }
        return;
    }
    if (position < 0 || slot < 0) return;
    const uint kv_head = (head - n_heads) % n_kv_heads;
    __global uchar *to = (rotate_it ? k_cache : v_cache) + cache_row(slot, kv_head, n_kv_heads, row_bytes);
#if KV == 2
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    if (lid == 0) {
        *(__global float *)to = largest / 127.0f;
        for (uint i = 4 + head_dim; i < row_bytes; ++i) to[i] = 0;  // up to a multiple of 4
    }
#endif
    for (uint j = lid; j < half_dim; j += WG) {
        ROTATED(a, b, j)
#if KV == 0
        ((__global float *)to)[FIRST(j)] = a;
        ((__global float *)to)[SECOND(j)] = b;
#elif KV == 1
        vstore_half_rte(a, FIRST(j), (__global half *)to);
        vstore_half_rte(b, SECOND(j), (__global half *)to);
#else
        ((__global char *)to)[4 + FIRST(j)] = convert_char_sat_rte(a * inverse);
        ((__global char *)to)[4 + SECOND(j)] = convert_char_sat_rte(b * inverse);
#endif
    }
}
