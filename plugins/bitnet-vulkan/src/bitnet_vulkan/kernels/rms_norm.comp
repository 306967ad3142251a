#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[l] = x[index[l]] / sqrt(mean(x[index[l]]^2) + eps) * gamma; one workgroup per row of width columns, kept in
// registers.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 0) readonly buffer X4 { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer Index { int row_index[]; };
layout(std430, binding = 2) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 2) readonly buffer Gamma4 { vec4 gamma4[]; };
layout(std430, binding = 3) writeonly buffer Y { float y[]; };
layout(std430, binding = 3) writeonly buffer Y4 { vec4 y4[]; };
layout(push_constant) uniform Params { uint rows, width; float eps; } p;

const uint ROW_WORDS = (WIDTH + 4 * GROUP - 1) / (4 * GROUP);

void main() {
    uint row = gl_WorkGroupID.x, from = uint(row_index[row]);
    vec4 v[ROW_WORDS], g[ROW_WORDS];
    float squares = 0.0;
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        uint word = LID + i * GROUP;
        v[i] = g[i] = vec4(0.0);
        if (WIDTH % 4 != 0) {
            for (uint e = 0; e < 4 && 4 * word + e < WIDTH; e++) {
                v[i][e] = x[from * WIDTH + 4 * word + e];
                g[i][e] = gamma[4 * word + e];
            }
        } else if (4 * word < WIDTH) {
            v[i] = x4[from * (WIDTH / 4) + word];
            g[i] = gamma4[word];
        }
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
    squares = group_sum(squares);
    float inverse = not_finite(squares) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(squares / float(WIDTH) + p.eps);
    [[unroll]] for (uint i = 0; i < ROW_WORDS; i++) {
        uint word = LID + i * GROUP;
        v[i] = v[i] * inverse * g[i];
        if (WIDTH % 4 != 0)
            for (uint e = 0; e < 4 && 4 * word + e < WIDTH; e++) y[row * WIDTH + 4 * word + e] = v[i][e];
        else if (4 * word < WIDTH)
            y4[row * (WIDTH / 4) + word] = v[i];
    }
}
