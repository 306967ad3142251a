#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// x[t,k] = (code[token[t] - first, k] - 1) * wscale[token[t] - first, k / BLOCK] for first <= token[t] < first + count;
// other rows are unchanged. w[count, width/4] in I2_S 128-blocks. TILE_N columns per workgroup.
layout(std430, binding = 0) readonly buffer W { uint w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 3) buffer X { float x[]; };
layout(push_constant) uniform Params { uint rows, hidden, width, first, count; } p;

void main() {
    uint row = gl_WorkGroupID.y, start = gl_WorkGroupID.x * TILE_N, scales = (p.width + BLOCK - 1) / BLOCK;
    int token = step_[row].x;
    if (token < 0 || uint(token) < p.first || uint(token) - p.first >= p.count) return;
    uint n = uint(token) - p.first;
    for (uint k = start + LID; k < min(start + TILE_N, p.hidden); k += GROUP) {
        uint byte = k % 32, word = w[n * (p.width / 16) + k / 128 * 8 + byte / 4];
        int code = int(word >> (8 * (byte % 4) + 6 - 2 * (k % 128 / 32)) & 3u);
        x[row * p.hidden + k] = float(code - 1) * wscale[n * scales + k / BLOCK];
    }
}
