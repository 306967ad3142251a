// glu_rotate_quantize of the transform of a workgroup. Requires gate_up4, signs4, q, scale and qsum.
#include "glu.glsl"
#include "rotate_quantize.glsl"

void glu_rotate() {
    uint words = p.width / 4, row = gl_WorkGroupID.y * words, word = gl_WorkGroupID.x * GROUP + LID;
    rotate_quantize(row, word, glu4(gate_up4[2 * row + word], gate_up4[2 * row + words + word]) * signs4[word]);
}
