// rms_norm_quantize of x, then matmul_ternary (BLOCK 0) or matmul_ternary_block of its codes, for one or two rows.
// Every group repeats the norm while its weights are being loaded. x f32[rows, columns]; gamma f32[columns]; w u8[outs,
// width / 4]; wscale f32[outs] or [outs, ceil(width / BLOCK)]; y f32[rows, y_stride]. columns == COLUMNS, width ==
// WIDTH.
// Group: TILE_N matrix rows, one row of x.
#define MOST_ROWS (TILE_N * LANES / GROUP)
#include "norm_row.clh"

KERNEL norm_matmul(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(float, gamma);
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_OUT(float, y);
    __local uint4 codes[CODES_OF(WIDTH)];
    __local float scratch[3 * EXCHANGED];
    const uint lid = get_local_id(0), lane = lid % LANES, t = get_group_id(1);
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * MOST_ROWS;
    float4 held[ROW_QUADS(WIDTH)], gains[ROW_QUADS(WIDTH)];
    load_row(held, x + (ulong)t * COLUMNS, COLUMNS, WIDTH);
    if (NORM) load_row(gains, gamma, COLUMNS, WIDTH);
    uint4 word[MOST_ROWS * STEPS_OF(WIDTH)];
    float factor[MOST_ROWS * FACTORS_OF(WIDTH)], before[MOST_ROWS], values[MOST_ROWS];
    __global float *to = y + (ulong)t * y_stride + y_first;
    UNROLL
    for (uint r = 0; r < MOST_ROWS; ++r) {
        const uint n = min(n0 + r, outs - 1);
        load_words(word + r * STEPS_OF(WIDTH), factor + r * FACTORS_OF(WIDTH), w, wscale, n, WIDTH, true);
#if ADD
        before[r] = load_now(to + n);
#endif
    }
    const quantized row = norm_row(held, gains, NORM, COLUMNS, WIDTH, eps, (__local uint *)codes, scratch);
    multiply(values, word, factor, MOST_ROWS, WIDTH, row, codes, scratch);
    UNROLL
    for (uint r = 0; r < MOST_ROWS; ++r) {
        if (lane != 0 || n0 + r >= outs) continue;
#if ADD
        to[n0 + r] = before[r] + values[r];
#else
        to[n0 + r] = values[r];
#endif
    }
}
