// y[t] = H(signs * x[t]) or, with INVERSE 1, signs * H(x[t]), with H over each `block` columns, the normalized
// Walsh-Hadamard transform; one threadgroup per `block` columns of a row, at most ROOM. x, y f32[rows, width]; signs
// f32[width].
#include "hadamard.h"
kernel void hadamard_rotate(device const float *x [[buffer(0)]], device const float *signs [[buffer(1)]],
                            device float *y [[buffer(2)]], constant Params &p [[buffer(3)]],
                            uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float v[ROOM];
    uint first = group.x * p.block, row = group.y * p.width + first;
    float factor = 1.0f / sqrt(float(p.block));
    for (uint i = tid; i < p.block; i += GROUP) v[i] = INVERSE == 1 ? x[row + i] : x[row + i] * signs[first + i];
    hadamard(v, p.block, tid);
    for (uint i = tid; i < p.block; i += GROUP) y[row + i] = INVERSE == 1 ? v[i] * factor * signs[first + i] : v[i] * factor;
}
