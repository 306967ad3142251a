// m = act(gate) * up in f32, act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1). gate_up = [gate | up] f32[rows,
// 2 * width]; m f32[rows, width]. Group: a row.
#include "glu.clh"
KERNEL glu(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, gate_up);
    AT_OUT(float, m);
    const ulong t = get_group_id(0);
    __global const float *gate = gate_up + 2 * t * width;
    for (uint i = get_local_id(0); i < width; i += GROUP) m[t * width + i] = gated(gate[i], gate[width + i]);
}
