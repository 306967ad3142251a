// y = gated_rms_norm of x, gate and gamma (gated_rms_norm.metal); then H(signs * y) for each `block` columns, quantized
// (rotate_quantize.h). One threadgroup per `block` columns of a row, at most ROOM, which are whole heads if NORM is 1.
// x, gate f32[rows, n_heads, HEAD_DIM]; gamma f32[HEAD_DIM]; signs f32[n_heads HEAD_DIM]; q i8[rows, n_heads HEAD_DIM];
// scale f32, qsum i32 [rows, n_heads HEAD_DIM / 32].
#include "rotate_quantize.h"

// Returns 1 / (1 + exp(-a)), times a if ACT is 1.
inline float opened(float a) { return (ACT == 1 ? a : 1.0f) / (1.0f + exp(-a)); }

kernel void gated_rotate_quantize(device const float *x [[buffer(0)]], device const float *gate [[buffer(1)]],
                                  device const float *gamma [[buffer(2)]], device const float *signs [[buffer(3)]],
                                  device char4 *q [[buffer(4)]], device float *scale [[buffer(5)]],
                                  device int *qsum [[buffer(6)]], constant Params &p [[buffer(7)]],
                                  uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float v[ROOM];
    threadgroup float squares[256];
    uint words = HEAD_DIM / 4, row = group.y * p.n_heads * words, first = group.x * GROUP, word = first + tid;
    uint to = word / words, per_group = p.n_heads / p.groups;
    uint from = row + (to % per_group * p.groups + to / per_group) * words + word % words;
    float4 z = ((device const float4 *)x)[from], a = ((device const float4 *)gate)[from];
    if (NORM == 1) {
        squares[tid] = dot(z, z);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float sum = 0.0f;
        for (uint i = 0; i < words; i++) sum += squares[tid / words * words + i];
        float mean = sum / float(HEAD_DIM);
        z = z * or_nan(1.0f / sqrt(mean + p.eps), is_bad(mean)) * ((device const float4 *)gamma)[word % words];
    }
    z = z * float4(opened(a.x), opened(a.y), opened(a.z), opened(a.w)) * ((device const float4 *)signs)[word];
    uint at = row + first;
    rotate_quantize(v, z, p.block, q + at, scale + at / 8, qsum + at / 8, tid);
}
