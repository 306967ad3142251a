// matmul_ternary for many rows with matrix cores (matrix_tile.cuh): y[t, n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) *
// scale[t] * wscale[n].
#include "prelude.cuh"

#define BLOCK 0
#define ABLOCK 0
#include "matrix_tile.cuh"

KERNEL matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* y,
                      u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    matrix_tile(w, wscale, q, scale, y, rows, outs, width, y_stride, y_first);
}
