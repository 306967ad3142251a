// m[t, n] = act(gate) * up of the ternary products of x[t], normed (NORM 1) and quantized in every threadgroup
// (norm_product.h), with both halves of w = [gate | up]; a simdgroup computes two columns of m. x f32[rows, columns];
// gamma f32[columns]; w u8[2 outs, width / 4]; wscale f32[2 outs] or [2 outs, ceil(width / BLOCK)]; m f32[rows, outs].
#include "numbers.h"
#include "reduce.h"
#include "quantize.h"
#include "codes.h"
#include "scales.h"
#include "norm_product.h"
#include "gate.h"
kernel void norm_matmul_glu(device const float *x [[buffer(0)]], device const float *gamma [[buffer(1)]],
                            device const uint *w [[buffer(2)]], device const float *wscale [[buffer(3)]],
                            device float *m [[buffer(4)]], constant Params &p [[buffer(5)]],
                            uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint room[32];
    threadgroup char4 q[ROOM / 4];
    threadgroup float scales[ROOM / 32];
    int total = 0;
    uint row = group.y, lane = tid % 32, first = group.x * TILE_N + tid / 32 * 2;
    float scale = prepare(x + row * p.columns, gamma, p.columns, p.width, p.eps, q, scales, room, tid, total);
    uint a = min(first, p.outs - 1), b = min(first + 1, p.outs - 1);
    uint4 n = uint4(a, b, a + p.outs, b + p.outs);
    float4 sums = multiply(w, wscale, n, p.width, q, scales, lane);
    for (uint r = 0; r < 2; r++) {
        float gate = simd_sum(sums[r]), up = simd_sum(sums[r + 2]);
        if (lane != 0 || first + r >= p.outs) continue;
        m[row * p.outs + first + r] = gated(finished(gate, total, scale, wscale, n[r]), finished(up, total, scale, wscale, n[r + 2]));
    }
}
