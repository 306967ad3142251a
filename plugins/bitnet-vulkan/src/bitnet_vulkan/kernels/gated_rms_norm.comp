#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[t, h'] = n(x[t, h]) * act(gate[t, h]) for each head h, with n(a) = a / sqrt(mean(a^2) + eps) * gamma (NORM 1) or a
// (NORM 0), act(a) = a / (1 + exp(-a)) (ACT 1) or 1 / (1 + exp(-a)) (ACT 2), and h' = h % groups * (n_heads / groups) +
// h / groups. x, gate, y f32[rows, n_heads, head_dim]; gamma f32[head_dim]. One workgroup per head of a row.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Gate { float gate[]; };
layout(std430, binding = 2) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 3) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, n_heads, head_dim, groups; float eps; } p;

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y * p.n_heads, from = (row + head) * p.head_dim;
    uint to = (row + head % p.groups * (p.n_heads / p.groups) + head / p.groups) * p.head_dim;
    float inverse = 1.0;
    if (NORM == 1) {
        float squares = 0.0;
        for (uint i = LID; i < p.head_dim; i += GROUP) squares += x[from + i] * x[from + i];
        squares = group_sum(squares);
        inverse = not_finite(squares) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(squares / float(p.head_dim) + p.eps);
    }
    for (uint i = LID; i < p.head_dim; i += GROUP) {
        float v = NORM == 1 ? x[from + i] * inverse * gamma[i] : x[from + i], a = gate[from + i];
        y[to + i] = v * ((ACT == 1 ? a : 1.0) / (1.0 + exp(-a)));
    }
}
