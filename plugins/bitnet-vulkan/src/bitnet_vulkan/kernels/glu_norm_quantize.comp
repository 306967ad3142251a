#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// m[T,F] = act(gate) * up in f32, gate_up[T,2F] = [gate | up]; act = max(g,0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1);
// then norm with gamma (NORM 1) and int8 per row: q[T,stride], scale[T], qsum[T].
layout(std430, binding = 0) readonly buffer GateUp { float gate_up[]; };
layout(std430, binding = 1) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 2) writeonly buffer Q { uint q[]; };
layout(std430, binding = 3) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 4) writeonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, width, stride; float eps; } p;

float raw(uint row, uint column) {
    float g = gate_up[2 * row * p.width + column];
    float u = gate_up[(2 * row + 1) * p.width + column];
    if (is_nan(g)) return g;  // max() may drop it
    float r = max(g, 0.0);
    return (ACT == 0 ? r * r : g / (1.0 + exp(-g))) * u;
}
#include "quantize.glsl"

void main() { quantize_row(gl_WorkGroupID.x, p.width, p.stride, p.eps); }
