// norm_matmul with the 2 outs rows of w = [gate | up], then m[t, n] = act(gate) * up as in glu_norm_quantize.cl.
// x f32[rows, columns]; gamma f32[columns]; w u8[2 outs, width / 4]; wscale f32[2 outs] or [2 outs, ceil(width / BLOCK)];
// m f32[rows, outs]. columns == COLUMNS, width == WIDTH. Group: TILE_N columns of m, one row of x.
#define ROWS_PER_SET (TILE_N * LANES / GROUP)
#define MOST_ROWS (2 * ROWS_PER_SET)
#include "glu.clh"
#include "norm_row.clh"

KERNEL norm_matmul_glu(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(float, gamma);
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_OUT(float, m);
    __local uint4 codes[CODES_OF(WIDTH)];
    __local float scratch[3 * EXCHANGED];
    const uint lid = get_local_id(0), lane = lid % LANES, t = get_group_id(1);
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * ROWS_PER_SET;
    float4 held[ROW_QUADS(WIDTH)], gains[ROW_QUADS(WIDTH)];
    load_row(held, x + (ulong)t * COLUMNS, COLUMNS, WIDTH);
    if (NORM) load_row(gains, gamma, COLUMNS, WIDTH);
    uint4 word[MOST_ROWS * STEPS_OF(WIDTH)];  // gate, up, gate, ...
    float factor[MOST_ROWS * FACTORS_OF(WIDTH)], values[MOST_ROWS];
    UNROLL
    for (uint r = 0; r < MOST_ROWS; ++r) {
        const uint n = r % 2 * outs + min(n0 + r / 2, outs - 1);
        load_words(word + r * STEPS_OF(WIDTH), factor + r * FACTORS_OF(WIDTH), w, wscale, n, WIDTH, true);
    }
    const quantized row = norm_row(held, gains, NORM, COLUMNS, WIDTH, eps, (__local uint *)codes, scratch);
    multiply(values, word, factor, MOST_ROWS, WIDTH, row, codes, scratch);
    UNROLL
    for (uint r = 0; r < MOST_ROWS; r += 2)
        if (lane == 0 && n0 + r / 2 < outs) m[(ulong)t * outs + n0 + r / 2] = gated(values[r], values[r + 1]);
}
