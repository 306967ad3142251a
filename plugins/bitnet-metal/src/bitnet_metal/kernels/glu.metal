// m = act(gate) * up of gate_up = [gate | up] (gate.h); one threadgroup per row. gate_up f32[rows, 2 width]; m
// f32[rows, width].
#include "numbers.h"
#include "gate.h"
kernel void glu(device const float *gate_up [[buffer(0)]], device float *m [[buffer(1)]], constant Params &p [[buffer(2)]],
                uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    device const float *gate = gate_up + group.x * 2 * p.width;
    for (uint k = tid; k < p.width; k += GROUP) m[group.x * p.width + k] = gated(gate[k], gate[p.width + k]);
}
