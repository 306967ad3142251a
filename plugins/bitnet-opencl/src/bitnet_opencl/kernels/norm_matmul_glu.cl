// norm_matmul with the 2 outs rows of w = [gate | up], then m[t, n] = act(gate) * up as in glu_norm_quantize.cl.
// x f32[rows, columns]; gamma f32[columns]; w u8[2 outs, width / 4]; wscale f32[2 outs]; m f32[rows, outs].
// columns == COLUMNS, width == WIDTH. Group: TILE_N columns of m, one row of x.
#include "glu.clh"
#include "norm_row.clh"

GROUP __kernel void norm_matmul_glu(IN(float, x), IN(float, gamma), IN(uchar, w), IN(float, wscale), OUT(float, m),
                                    const uint rows, const uint columns, const uint outs, const uint width,
                                    const float eps) {
    AT_IN(float, x);
    AT_IN(float, gamma);
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_OUT(float, m);
    __local uint4 codes[4 * UNITS];
    __local float scratch[3 * WG];
    const uint lid = get_local_id(0), lane = lid % LANES, t = get_group_id(1);
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * ROWS_PER_SET;
    float held[SHARE], gains[SHARE];
    load_share(held, gains, x + (ulong)t * COLUMNS, gamma);
    uint4 gate_words[ROWS_PER_SET][STEPS], up_words[ROWS_PER_SET][STEPS];
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        const uint n = min(n0 + r, outs - 1);
        load_words(gate_words[r], w + (ulong)n * UNITS, lane);
        load_words(up_words[r], w + (ulong)(outs + n) * UNITS, lane);
    }
    float gate_scale[ROWS_PER_SET], up_scale[ROWS_PER_SET];
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        const uint n = min(n0 + r, outs - 1);
        gate_scale[r] = load_now(wscale + n);
        up_scale[r] = load_now(wscale + outs + n);
    }
    const quantized row = norm_row(held, gains, eps, (__local char *)codes, scratch);
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        const int gate_sum = lanes_sum_int(multiply(gate_words[r], codes, lane, 0), (__local int *)scratch, LANES);
        const int up_sum = lanes_sum_int(multiply(up_words[r], codes, lane, 0), (__local int *)scratch, LANES);
        const uint n = n0 + r;
        if (lane != 0 || n >= outs) continue;
        const float gate = (float)(gate_sum - row.qsum) * row.scale * gate_scale[r];
        const float up = (float)(up_sum - row.qsum) * row.scale * up_scale[r];
        m[(ulong)t * outs + n] = glu(gate, up);
    }
}
