// y[l, y_first + n] = sum_k x[l, k] * w[n, k] in f32; w of DTYPE.
// x f32[rows, width]; w[outs, width] of DTYPE; y f32[rows, y_stride]. LANES work-items share a matrix row, 8 elements
// each at a time, for ROWS matrix rows. width == WIDTH. Group: TILE_N matrix rows, TILE_T rows of x.
#include "dense.clh"
#define SETS (GROUP / LANES)
#define UNITS (WIDTH / 8)
#ifndef WIDTH
#define WIDTH width
#endif
#if ALIGNED && GROUP > 1  // a GPU's vload8 does not know the alignment
#define FLOATS8(p) (float8)(*(__global const float4 *)(p), ((__global const float4 *)(p))[1])
#else
#define FLOATS8(p) vload8(0, p)
#endif
KERNEL matmul_dense(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(uchar, w);
    AT_OUT(float, y);
    __local float scratch[GROUP];
    const uint lid = get_local_id(0), lane = lid % LANES;
    const uint t0 = get_group_id(1) * TILE_T, n_begin = get_group_id(0) * TILE_N + lid / LANES * ROWS;
    const ulong row_bytes = TABLE_ROW_BYTES(WIDTH);
    for (uint pass = 0; pass < TILE_N; pass += SETS * ROWS) {
        const uint n = n_begin + pass;
        __global const uchar *weights[ROWS];
        float8 wide[ROWS][TILE_T];
        UNROLL
        for (uint r = 0; r < ROWS; ++r) {
            weights[r] = w + min(n + r, outs - 1) * row_bytes;
            UNROLL
            for (uint t = 0; t < TILE_T; ++t) wide[r][t] = 0;
        }
        for (uint u = lane; u < UNITS; u += LANES) {
            float8 values[ROWS];
            UNROLL
            for (uint r = 0; r < ROWS; ++r) values[r] = table_values8(weights[r], 8 * u);
            UNROLL
            for (uint t = 0; t < TILE_T; ++t) {
                const float8 v = FLOATS8(x + (ulong)min(t0 + t, rows - 1) * WIDTH + 8 * u);
                UNROLL
                for (uint r = 0; r < ROWS; ++r) wide[r][t] = fma(values[r], v, wide[r][t]);
            }
        }
        UNROLL
        for (uint r = 0; r < ROWS; ++r) {
            UNROLL
            for (uint t = 0; t < TILE_T; ++t) {
                const float4 half_sum = wide[r][t].lo + wide[r][t].hi;
                float sum = half_sum.x + half_sum.y + half_sum.z + half_sum.w;
                for (uint i = 8 * UNITS + lane; i < WIDTH; i += LANES)
                    sum = fma(table_value(weights[r], i), x[(ulong)min(t0 + t, rows - 1) * WIDTH + i], sum);
                sum = lanes_sum(sum, scratch, LANES);
                if (lane == 0 && n + r < outs && t0 + t < rows)
                    y[(ulong)(t0 + t) * y_stride + y_first + n + r] = sum;
            }
        }
    }
}
