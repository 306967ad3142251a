// matmul_ternary_block for many rows without matrix cores (dot_tile.cuh).
#include "prelude.cuh"
#include "dot_tile.cuh"

KERNEL matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                            float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    dot_tile(w, wscale, q, scale, y, rows, outs, width, y_stride, y_first);
}
