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
#include "rotation_memory.clh"
#include "glu_rotate.clh"
}
