// matmul_dense for few rows of x and a table of few rows (gates of delta nets), which would not occupy a GPU otherwise:
// y[l, y_first + n] = sum_k x[l, k] * w[n, k] in f32. x f32[rows, width]; w[outs, width] of DTYPE; y f32[rows,
// y_stride]. Group: a row of w, eight elements per work-item at a time, TILE_T rows of x.
#include "dense.clh"
KERNEL matmul_dense_narrow(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(uchar, w);
    AT_OUT(float, y);
    __local float scratch[EXCHANGED];
    const uint lid = get_local_id(0), n = get_group_id(0), t0 = get_group_id(1) * TILE_T;
    __global const uchar *weights = w + n * TABLE_ROW_BYTES(width);
    float8 wide[TILE_T];
    UNROLL
    for (uint t = 0; t < TILE_T; ++t) wide[t] = 0;
    for (uint u = lid; u < width / 8; u += GROUP) {
        const float8 values = table_values8(weights, 8 * u);
        UNROLL
        for (uint t = 0; t < TILE_T; ++t)
            wide[t] = fma(values, vload8(u, x + (ulong)min(t0 + t, rows - 1) * width), wide[t]);
    }
    for (uint t = 0; t < TILE_T; ++t) {
        const float4 half_sum = wide[t].lo + wide[t].hi;
        float sum = half_sum.x + half_sum.y + (half_sum.z + half_sum.w);
        for (uint i = width / 8 * 8 + lid; i < width; i += GROUP)
            sum = fma(table_value(weights, i), x[(ulong)min(t0 + t, rows - 1) * width + i], sum);
        sum = group_sum(sum, scratch);
        if (lid == 0 && t0 + t < rows) y[(ulong)(t0 + t) * y_stride + y_first + n] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
