// matmul_ternary_block for many rows with matrix cores (matrix_tile.cuh): y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] *
// scale[t, a] * (sum over the 32 columns of a of (code[n,k] - 1) q[t,k]).
#include "prelude.cuh"
#include "matrix_tile.cuh"

KERNEL matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                            float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    matrix_tile(w, wscale, q, scale, y, rows, outs, width, y_stride, y_first);
}
