// attention for CPU devices, head_dim = 16 * OWNED: one work-item per group computes one head of one row in vectors of
// 16, one cache block after the other. Formula and shapes as in attention.cl.
#if KV == 0
#define CACHE16(row, o) vload16(o, (__global const float *)(row))
#define CACHE_SCALE(row) 1.0f
#elif KV == 1
#define CACHE16(row, o) vload_half16(o, (__global const half *)(row))
#define CACHE_SCALE(row) 1.0f
#else
#define CACHE16(row, o) convert_float16(vload16(o, (__global const char *)(row) + 4))
#define CACHE_SCALE(row) (*(__global const float *)(row))
#endif

KERNEL attention_cpu(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, q);
    AT_IN(uchar, k_cache);
    AT_IN(uchar, v_cache);
    AT_IN(int, step);
    AT_IN(int, tables);
    AT_OUT(float, out);
    const uint head = get_group_id(0), t = get_group_id(1), kv_head = head / (n_heads / n_kv_heads);
    const int position = step[4 * t + 1];
    __global const int *table = tables + (ulong)step[4 * t + 3] * max_blocks;
    __global const float *from = q + ((ulong)t * n_heads + head) * head_dim;
    __global float *to = out + ((ulong)t * n_heads + head) * head_dim;
    float16 query[OWNED], acc[OWNED];
    UNROLL
    for (uint o = 0; o < OWNED; ++o) {
        query[o] = vload16(o, from);
        acc[o] = 0;
    }
    float largest = -INFINITY, total = 0;
    for (uint start = 0; (int)start <= position; start += KV_BLOCK) {
        const uint count = min((uint)KV_BLOCK, (uint)position + 1 - start);
        const ulong first = cache_row(table[start / KV_BLOCK] * KV_BLOCK, kv_head, n_kv_heads, row_bytes);
        float weights[KV_BLOCK];
        float now_largest = largest;
        for (uint i = 0; i < count; ++i) {
            __global const uchar *row = k_cache + first + i * row_bytes;
            float16 dots = 0;
            UNROLL
            for (uint o = 0; o < OWNED; ++o) dots = fma(query[o], CACHE16(row, o), dots);
            const float8 a = dots.lo + dots.hi;
            const float4 b = a.lo + a.hi;
            weights[i] = (b.x + b.y + b.z + b.w) * CACHE_SCALE(row) * scale;
            now_largest = MAX_OF(weights[i], now_largest);
        }
        const float faded = exp(largest - now_largest);
        largest = now_largest;
        total *= faded;
        UNROLL
        for (uint o = 0; o < OWNED; ++o) acc[o] *= faded;
        for (uint i = 0; i < count; ++i) {
            __global const uchar *row = v_cache + first + i * row_bytes;
            const float weight = exp(weights[i] - largest);
            total += weight;
            UNROLL
            for (uint o = 0; o < OWNED; ++o) acc[o] = fma(weight * CACHE_SCALE(row), CACHE16(row, o), acc[o]);
        }
    }
    UNROLL
    for (uint o = 0; o < OWNED; ++o) vstore16(position < 0 ? (float16)0 : acc[o] / total, o, to);
}
