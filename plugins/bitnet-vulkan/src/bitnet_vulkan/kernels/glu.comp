#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// m = act(gate) * up in f32 (glu.glsl). gate_up = [gate | up] f32[rows, 2 * width]; m f32[rows, width]. One workgroup
// per row.
layout(std430, binding = 0) readonly buffer GateUp { float gate_up[]; };
layout(std430, binding = 0) readonly buffer GateUp4 { vec4 gate_up4[]; };
layout(std430, binding = 1) writeonly buffer M { float m[]; };
layout(std430, binding = 1) writeonly buffer M4 { vec4 m4[]; };
layout(push_constant) uniform Params { uint rows, width; } p;

#include "glu.glsl"

void main() {
    uint row = gl_WorkGroupID.x, words = p.width / 4;
    if (p.width % 4 == 0) {
        for (uint i = LID; i < words; i += GROUP)
            m4[row * words + i] = glu4(gate_up4[2 * row * words + i], gate_up4[(2 * row + 1) * words + i]);
    } else {
        for (uint i = LID; i < p.width; i += GROUP)
            m[row * p.width + i] = glu(gate_up[2 * row * p.width + i], gate_up[(2 * row + 1) * p.width + i]);
    }
}
