#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// x[t,:] = table[token[t] - first,:] for first <= token[t] < first + count; other rows are unchanged. TILE_N columns
// per workgroup.
layout(std430, binding = 0) readonly buffer Table { uint table[]; };
layout(std430, binding = 1) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 2) buffer X { float x[]; };
layout(push_constant) uniform Params { uint rows, hidden, first, count; } p;

uint table_word(uint i) { return table[i]; }
#include "dense.glsl"

void main() {
    uint row = gl_WorkGroupID.y, start = gl_WorkGroupID.x * TILE_N;
    int token = step_[row].x;
    if (token < 0 || uint(token) < p.first || uint(token) - p.first >= p.count) return;
    uint base = (uint(token) - p.first) * p.hidden;
    for (uint k = start + LID; k < min(start + TILE_N, p.hidden); k += GROUP)
        x[row * p.hidden + k] = table_element(base + k);
}
