#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[l] = x[index[l]] / sqrt(mean(x^2) + eps) * gamma; one workgroup per row of width columns.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Index { int row_index[]; };
layout(std430, binding = 2) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 3) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, width; float eps; } p;

void main() {
    uint row = gl_WorkGroupID.x, base = uint(row_index[row]) * p.width;
    float squares = 0.0;
    for (uint k = LID; k < p.width; k += GROUP) squares += x[base + k] * x[base + k];
    squares = group_sum(squares);
    float inverse = not_finite(squares) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(squares / float(p.width) + p.eps);
    for (uint k = LID; k < p.width; k += GROUP) y[row * p.width + k] = x[base + k] * inverse * gamma[k];
}
