// m = act(gate) * up (glu.clh) of gate_up = [gate | up], then H(signs * m) for each `block` columns, quantized
// (rotate_quantize.clh). gate_up f32[rows, 2 * width]; signs f32[width]; q i8[rows, width]; scale f32, qsum i32
// [rows, width / 32]. Group: a block of a row, at most ROOM columns.
#include "glu.clh"
#include "rotate_quantize.clh"
KERNEL glu_rotate_quantize(ARGUMENTS) {
    PARAMETERS
    AT_IN(float4, gate_up);
    AT_IN(float4, signs);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
    __local float4 v[ROOM / 4];
    __local uint most[ROOM / 4];
    __local int sums[ROOM / 4];
    const uint first = get_group_id(0) * block;
    const ulong t = get_group_id(1), at = t * width + first;
    __global const float4 *gate = gate_up + (2 * t * width + first) / 4;
    for (uint i = get_local_id(0); i < block / 4; i += GROUP) v[i] = gated4(gate[i], gate[width / 4 + i]) * signs[first / 4 + i];
    rotate_quantize(v, most, sums, block, q + at, scale + at / 32, qsum + at / 32);
}
