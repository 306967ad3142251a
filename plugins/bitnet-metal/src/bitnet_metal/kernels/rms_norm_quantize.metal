// y = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then quantized (quantize.h); one threadgroup per row. x
// f32[rows, width]; gamma f32[width]; q i8[rows, stride]; scale f32, qsum i32 [rows] or [rows, stride / 32].
#include "numbers.h"
#include "reduce.h"
#include "quantize.h"
#include "quantize_row.h"
struct Plain {
    device const float *x;
    float at(uint k) const { return x[k]; }
};

kernel void rms_norm_quantize(device const float *x [[buffer(0)]], device const float *gamma [[buffer(1)]],
                              device char4 *q [[buffer(2)]], device float *scale [[buffer(3)]],
                              device int *qsum [[buffer(4)]], constant Params &p [[buffer(5)]],
                              uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint room[32];
    uint row = group.x, scales = ABLOCK != 0 ? p.stride / 32 : 1;
    Plain from = {x + row * p.width};
    quantize_row(from, gamma, p.width, p.stride, p.eps, q + row * (p.stride / 4), scale + row * scales,
                 qsum + row * scales, room, tid);
}
