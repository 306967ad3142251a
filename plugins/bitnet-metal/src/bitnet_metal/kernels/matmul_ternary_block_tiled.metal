// matmul_ternary_block for the rows of a prompt (product_tiled.h); signed codes need no qsum. Formula as in
// matmul_ternary_block.metal. w u8[outs, width / 4]; wscale f32[outs, ceil(width / BLOCK)]; q i8[rows, width]; scale
// f32, qsum i32 [rows] or [rows, width / 32] (ABLOCK not 0); y f32[rows, y_stride].
#include "product_tiled.h"
kernel void matmul_ternary_block_tiled(device const uint *w [[buffer(0)]], device const float *wscale [[buffer(1)]],
                                       device const char4 *q [[buffer(2)]], device const float *scale [[buffer(3)]],
                                       device const int *qsum [[buffer(4)]], device float *y [[buffer(5)]],
                                       constant Params &p [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                                       uint tid [[thread_index_in_threadgroup]]) {
    threadgroup half tile_w[4096];  // [matrix row][column]
    threadgroup half tile_q[2048];  // [row of activations][column]
    threadgroup float tile_y[2048];  // [row of activations][matrix row]
    tiled(w, wscale, q, scale, y, p, group, tid, tile_w, tile_q, tile_y);
}
