// matmul_ternary for CPU devices: one work-item per group processes TILE_N matrix rows, ROWS at a time, and TILE_T rows
// of q, COLUMNS at a time, in vectors of 32 bytes (one 128-block of a matrix row). Sums stay in int16 lanes for SPAN
// blocks (a lane gains at most 8 * 2 * 128 = 2048 per block) and are then added to int32. Formula and shapes as in
// matmul_ternary.cl.
#define SPAN 15

#ifdef __AVX2__
// The instruction for unsigned times signed bytes, added in pairs; no OpenCL C expression compiles to it.
typedef char bytes __attribute__((vector_size(32)));
INLINE bytes load_columns(__global const char *q) { return __builtin_astype(vload16(0, (__global const short *)q), bytes); }
INLINE short16 multiply_add(short16 words, int plane, bytes x, short16 sum) {
    const short16 codes = (words >> (short)(6 - 2 * plane)) & (short)0x0303;
    return sum + __builtin_astype(__builtin_ia32_pmaddubsw256(__builtin_astype(codes, bytes), x), short16);
}
#else
typedef struct {
    short16 even, odd;
} bytes;
INLINE bytes load_columns(__global const char *q) {
    const short16 pairs = vload16(0, (__global const short *)q);
    bytes x;
    x.even = (pairs << (short)8) >> (short)8;
    x.odd = pairs >> (short)8;
    return x;
}
INLINE short16 multiply_add(short16 words, int plane, bytes x, short16 sum) {
    sum += ((words >> (short)(6 - 2 * plane)) & (short)3) * x.even;
    return sum + ((words >> (short)(14 - 2 * plane)) & (short)3) * x.odd;
}
#endif

KERNEL matmul_ternary_cpu(ARGUMENTS) {
    PARAMETERS
    AT_IN(uchar, w);
    AT_IN(float, wscale);
    AT_IN(char, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
    const uint n_begin = get_group_id(0) * TILE_N, n_end = min(n_begin + TILE_N, outs);
    const uint t_begin = get_group_id(1) * TILE_T, t_end = min(t_begin + TILE_T, rows);
    const uint blocks = width / 128;
    for (uint n = n_begin; n < n_end; n += ROWS) {
        __global const uchar *weights[ROWS];
        UNROLL
        for (uint r = 0; r < ROWS; ++r) weights[r] = w + (ulong)min(n + r, outs - 1) * (width / 4);
        for (uint t = t_begin; t < t_end; t += COLUMNS) {
            __global const char *columns[COLUMNS];
            UNROLL
            for (uint c = 0; c < COLUMNS; ++c) columns[c] = q + (ulong)min(t + c, rows - 1) * width;
            int16 wide[ROWS][COLUMNS];
            UNROLL
            for (uint r = 0; r < ROWS; ++r)
                UNROLL
                for (uint c = 0; c < COLUMNS; ++c) wide[r][c] = 0;
            for (uint first = 0; first < blocks; first += SPAN) {
                short16 sums[ROWS][COLUMNS];
                UNROLL
                for (uint r = 0; r < ROWS; ++r)
                    UNROLL
                    for (uint c = 0; c < COLUMNS; ++c) sums[r][c] = 0;
                const uint last = min(first + SPAN, blocks);
                for (uint b = first; b < last; ++b) {
                    short16 words[ROWS];
                    UNROLL
                    for (uint r = 0; r < ROWS; ++r) words[r] = vload16(0, (__global const short *)(weights[r] + 32 * b));
                    UNROLL
                    for (int plane = 0; plane < 4; ++plane)
                        UNROLL
                        for (uint c = 0; c < COLUMNS; ++c) {
                            const bytes x = load_columns(columns[c] + 128 * b + 32 * plane);
                            UNROLL
                            for (uint r = 0; r < ROWS; ++r) sums[r][c] = multiply_add(words[r], plane, x, sums[r][c]);
                        }
                }
                UNROLL
                for (uint r = 0; r < ROWS; ++r)
                    UNROLL
                    for (uint c = 0; c < COLUMNS; ++c) wide[r][c] += convert_int16(sums[r][c]);
            }
            UNROLL
            for (uint r = 0; r < ROWS && n + r < n_end; ++r)
                UNROLL
                for (uint c = 0; c < COLUMNS && t + c < t_end; ++c) {
                    const int8 a = wide[r][c].lo + wide[r][c].hi;
                    const int4 b = a.lo + a.hi;
                    const int sum = b.x + b.y + b.z + b.w;
                    const float value = (float)(sum - qsum[t + c]) * scale[t + c] * wscale[n + r];
                    __global float *to = y + (ulong)(t + c) * y_stride + y_first + n + r;
#if ADD
                    *to += value;
#else
                    *to = value;
#endif
                }
        }
    }
}
