// y[t, y_first + n] (+)= (sum_k code[n, k] q[t, k] - qsum[t]) * scale[t] * wscale[n] for a few rows t.
// w u8[outs, width / 4]; wscale f32[outs]; q i8[rows, width]; scale f32[rows]; qsum i32[rows]; y f32[rows, y_stride].
constant uint BLOCK = 0;
constant uint ABLOCK = 0;
#include "codes.h"
#include "scales.h"
#include "product_few.h"
kernel void matmul_ternary(device const uint *w [[buffer(0)]], device const float *wscale [[buffer(1)]],
                           device const char4 *q [[buffer(2)]], device const float *scale [[buffer(3)]],
                           device const int *qsum [[buffer(4)]], device float *y [[buffer(5)]],
                           constant Params &p [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                           uint tid [[thread_index_in_threadgroup]]) {
    few(w, wscale, q, scale, qsum, y, p, group, tid);
}
