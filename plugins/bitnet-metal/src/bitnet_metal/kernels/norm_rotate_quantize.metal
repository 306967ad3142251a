// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * gamma (NORM 1) or x[t] (NORM 0), stored if KEEP is 1; then H(signs * y) for
// each `block` columns, quantized (rotate_quantize.h). One threadgroup per TILE_N * block columns of a row, at most
// ROOM; each sums the squares of the whole row. x, y f32[rows, width]; gamma, signs f32[width]; q i8[rows, width];
// scale f32, qsum i32 [rows, width / 32].
#include "reduce.h"
#include "rotate_quantize.h"
kernel void norm_rotate_quantize(device const float *x [[buffer(0)]], device const float *gamma [[buffer(1)]],
                                 device const float *signs [[buffer(2)]], device float *y [[buffer(3)]],
                                 device char4 *q [[buffer(4)]], device float *scale [[buffer(5)]],
                                 device int *qsum [[buffer(6)]], constant Params &p [[buffer(7)]],
                                 uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float v[ROOM];
    threadgroup uint room[32];
    uint words = p.width / 4, row = group.y * words, begin = group.x * TILE_N * GROUP;
    device const float4 *from = (device const float4 *)x + row;
    float mean = 0.0f;
    if (NORM == 1) {
        float sum = 0.0f;
        for (uint i = tid; i < words; i += GROUP) sum += dot(from[i], from[i]);
        mean = group_sum(sum, room, tid) / float(p.width);
    }
    float factor = or_nan(1.0f / sqrt(mean + p.eps), is_bad(mean));
    for (uint first = begin; first < min(begin + TILE_N * GROUP, words); first += GROUP) {
        uint word = first + tid, at = row + first;
        float4 z = from[word];
        if (NORM == 1) z = z * factor * ((device const float4 *)gamma)[word];
        if (KEEP == 1) ((device float4 *)y)[row + word] = z;
        z = z * ((device const float4 *)signs)[word];
        rotate_quantize(v, z, p.block, q + at, scale + at / 8, qsum + at / 8, tid);
    }
}
