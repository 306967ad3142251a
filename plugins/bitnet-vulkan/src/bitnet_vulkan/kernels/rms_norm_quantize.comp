#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[T,K] = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then int8 codes per row, or per ABLOCK columns:
// q[T,stride], scale and qsum [T] or [T,stride/32].
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 0) readonly buffer X4 { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 1) readonly buffer Gamma4 { vec4 gamma4[]; };
layout(std430, binding = 2) writeonly buffer Q { uint q[]; };
layout(std430, binding = 3) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 4) writeonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, width, stride; float eps; } p;

float raw(uint row, uint column) { return x[row * p.width + column]; }
vec4 raw4(uint row, uint word) { return x4[row * (p.width / 4) + word]; }
void put(uint word, uint codes) { q[gl_WorkGroupID.x * (WIDTH / 4) + word] = codes; }
void put_block(uint block, float unit, int sum) {
    scale[gl_WorkGroupID.x * (WIDTH / 32) + block] = unit;
    qsum[gl_WorkGroupID.x * (WIDTH / 32) + block] = sum;
}
#define MOST_WIDTH WIDTH
const bool BLOCKED = ABLOCK != 0;
#include "quantize.glsl"

void main() {
    uint row = gl_WorkGroupID.x;
    vec4 values[ROW_WORDS], g[ROW_WORDS];
    load_row(row, p.width, values, g);
    Quantized made = codes_of(values, g, NORM, p.width, WIDTH, p.eps);
    if (LID != 0 || BLOCKED) return;
    scale[row] = made.scale;
    qsum[row] = made.sum;
}
