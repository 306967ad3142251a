#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[t] = H(signs * x[t]) or, with INVERSE 1, signs * H(x[t]), with H over each WIDTH columns, the normalized
// Walsh-Hadamard transform (hadamard.glsl). x, y f32[rows, width]; signs f32[width]. One workgroup per WIDTH columns of
// a row.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Signs { float signs[]; };
layout(std430, binding = 2) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, width, block; } p;

#include "hadamard.glsl"
#include "hadamard_factor.glsl"

void main() {
    uint first = gl_WorkGroupID.x * WIDTH, row = gl_WorkGroupID.y * p.width + first;
    float factor = hadamard_factor(WIDTH);
    for (uint i = LID; i < WIDTH; i += GROUP) v[i] = INVERSE == 1 ? x[row + i] : x[row + i] * signs[first + i];
    hadamard();
    for (uint i = LID; i < WIDTH; i += GROUP) y[row + i] = INVERSE == 1 ? v[i] * factor * signs[first + i] : v[i] * factor;
}
