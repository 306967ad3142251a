// y[t, y_first + n] (+)= sum_b wscale[n, b] * scale[t] * (sum over block b of (code[n, k] - 1) q[t, k]) for a few rows
// t; if ABLOCK is not 0, scale[t, a] of each 32 columns within the sum. w u8[outs, width / 4]; wscale f32[outs,
// ceil(width / BLOCK)]; q i8[rows, width]; scale f32, qsum i32 [rows] or [rows, width / 32]; y f32[rows, y_stride].
#include "codes.h"
#include "scales.h"
#include "product_few.h"
kernel void matmul_ternary_block(device const uint *w [[buffer(0)]], device const float *wscale [[buffer(1)]],
                                 device const char4 *q [[buffer(2)]], device const float *scale [[buffer(3)]],
                                 device const int *qsum [[buffer(4)]], device float *y [[buffer(5)]],
                                 constant Params &p [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                                 uint tid [[thread_index_in_threadgroup]]) {
    few(w, wscale, q, scale, qsum, y, p, group, tid);
}
