// rms_norm_quantize of x, then matmul_ternary of what it gives, for a row or two: every group does the norm again, while
// its weights are on their way. x f32[rows, columns]; gamma f32[columns]; w u8[outs, width / 4]; wscale f32[outs];
// y f32[rows, y_stride]. columns == COLUMNS, width == WIDTH. Group: TILE_N matrix rows, one row of x.
#define MOST_ROWS (TILE_N * LANES / WG)
#include "norm_row.clh"

GROUP __kernel void norm_matmul(IN(float, x), IN(float, gamma), IN(uchar, w), IN(float, wscale), OUT(float, y),
                                const uint rows, const uint columns, const uint outs, const uint width,
                                const uint y_stride, const uint y_first, const float eps) {
    AT_IN(float, x);
    AT_IN(float, gamma);
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_OUT(float, y);
    __local uint4 codes[WIDTH / 16];
    __local float scratch[3 * EXCHANGED];
    const uint lid = get_local_id(0), lane = lid % LANES, t = get_group_id(1);
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * MOST_ROWS;
    float4 held[ROW_QUADS(WIDTH)], gains[ROW_QUADS(WIDTH)];
    load_row(held, x + (ulong)t * COLUMNS, COLUMNS, WIDTH);
    if (NORM) load_row(gains, gamma, COLUMNS, WIDTH);
    uint4 word[MOST_ROWS * STEPS_OF(WIDTH)];
    float row_scale[MOST_ROWS], before[MOST_ROWS];
    __global float *to = y + (ulong)t * y_stride + y_first;
    UNROLL
    for (uint r = 0; r < MOST_ROWS; ++r)
        load_words(word + r * STEPS_OF(WIDTH), w + (ulong)min(n0 + r, outs - 1) * (WIDTH / 64), WIDTH, true);
    UNROLL
    for (uint r = 0; r < MOST_ROWS; ++r) {
        const uint n = min(n0 + r, outs - 1);
        row_scale[r] = load_now(wscale + n);
#if ADD
        before[r] = load_now(to + n);
#endif
    }
    const quantized row = norm_row(held, gains, NORM, COLUMNS, WIDTH, eps, (__local uint *)codes, scratch);
    int sums[MOST_ROWS];
    multiply(sums, word, MOST_ROWS, WIDTH, codes, (__local int *)scratch);
    UNROLL
    for (uint r = 0; r < MOST_ROWS; ++r) {
        if (lane != 0 || n0 + r >= outs) continue;
        const float value = (float)(sums[r] - row.qsum) * row.scale * row_scale[r];
#if ADD
        to[n0 + r] = before[r] + value;
#else
        to[n0 + r] = value;
#endif
    }
}
