// m = act(gate) * up of gate_up = [gate | up] (gate.h); then H(signs * m) for each `block` columns, quantized
// (rotate_quantize.h); one threadgroup per `block` columns of a row, at most ROOM. gate_up f32[rows, 2 width]; signs
// f32[width]; q i8[rows, width]; scale f32, qsum i32 [rows, width / 32].
#include "rotate_quantize.h"
#include "gate.h"
kernel void glu_rotate_quantize(device const float *gate_up [[buffer(0)]], device const float *signs [[buffer(1)]],
                                device char4 *q [[buffer(2)]], device float *scale [[buffer(3)]],
                                device int *qsum [[buffer(4)]], constant Params &p [[buffer(5)]],
                                uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float v[ROOM];
    uint words = p.width / 4, first = group.x * GROUP, at = group.y * words + first;
    device const float4 *gate = (device const float4 *)gate_up + 2 * group.y * words + first;
    float4 g = gate[tid], u = gate[words + tid];
    float4 m = float4(gated(g.x, u.x), gated(g.y, u.y), gated(g.z, u.z), gated(g.w, u.w));
    m = m * ((device const float4 *)signs)[first + tid];
    rotate_quantize(v, m, p.block, q + at, scale + at / 8, qsum + at / 8, tid);
}
