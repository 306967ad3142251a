// y[t, y_first + n] (+)= the ternary product of x[t], normed (NORM 1) and quantized in every threadgroup
// (norm_product.h). x f32[rows, columns]; gamma f32[columns]; w u8[outs, width / 4]; wscale f32[outs] or [outs,
// ceil(width / BLOCK)]; y f32[rows, y_stride].
#include "numbers.h"
#include "reduce.h"
#include "quantize.h"
#include "codes.h"
#include "scales.h"
#include "norm_product.h"
kernel void norm_matmul(device const float *x [[buffer(0)]], device const float *gamma [[buffer(1)]],
                        device const uint *w [[buffer(2)]], device const float *wscale [[buffer(3)]],
                        device float *y [[buffer(4)]], constant Params &p [[buffer(5)]],
                        uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint room[32];
    threadgroup char4 q[ROOM / 4];
    threadgroup float scales[ROOM / 32];
    int total = 0;
    uint row = group.y, lane = tid % 32, first = group.x * TILE_N + tid / 32 * 4;
    float scale = prepare(x + row * p.columns, gamma, p.columns, p.width, p.eps, q, scales, room, tid, total);
    uint4 n = min(uint4(first, first + 1, first + 2, first + 3), uint4(p.outs - 1));
    float4 sums = multiply(w, wscale, n, p.width, q, scales, lane);
    for (uint r = 0; r < 4; r++) {
        float sum = simd_sum(sums[r]);
        if (lane != 0 || first + r >= p.outs) continue;
        uint at = row * p.y_stride + p.y_first + first + r;
        float made = finished(sum, total, scale, wscale, n[r]);
        y[at] = ADD == 1 ? y[at] + made : made;
    }
}
