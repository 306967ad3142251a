// rms_norm_quantize of x, then matmul_ternary of what it gives, for a row or two: every group does the norm again, while
// its weights are on their way. x f32[rows, columns]; gamma f32[columns]; w u8[outs, width / 4]; wscale f32[outs];
// y f32[rows, y_stride]. columns == COLUMNS, width == WIDTH. Group: TILE_N matrix rows, one row of x.
#include "norm_row.clh"

GROUP __kernel void norm_matmul(IN(float, x), IN(float, gamma), IN(uchar, w), IN(float, wscale), OUT(float, y),
                                const uint rows, const uint columns, const uint outs, const uint width,
                                const uint y_stride, const uint y_first, const float eps) {
    AT_IN(float, x);
    AT_IN(float, gamma);
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_OUT(float, y);
    __local uint4 codes[4 * UNITS];
    __local float scratch[3 * WG];
    const uint lid = get_local_id(0), lane = lid % LANES, t = get_group_id(1);
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * ROWS_PER_SET;
    float held[SHARE], gains[SHARE];
    load_share(held, gains, x + (ulong)t * COLUMNS, gamma);
    uint4 word[ROWS_PER_SET][STEPS];
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) load_words(word[r], w + (ulong)min(n0 + r, outs - 1) * UNITS, lane);
    float row_scale[ROWS_PER_SET], before[ROWS_PER_SET];
    __global float *to = y + (ulong)t * y_stride + y_first;
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        const uint n = min(n0 + r, outs - 1);
        row_scale[r] = load_now(wscale + n);
#if ADD
        before[r] = load_now(to + n);
#endif
    }
    const quantized row = norm_row(held, gains, eps, (__local char *)codes, scratch);
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        const int sum = lanes_sum_int(multiply(word[r], codes, lane, 0), (__local int *)scratch, LANES);
        if (lane != 0 || n0 + r >= outs) continue;
        const float value = (float)(sum - row.qsum) * row.scale * row_scale[r];
#if ADD
        to[n0 + r] = before[r] + value;
#else
        to[n0 + r] = value;
#endif
    }
}
