#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * gamma (NORM 1) or x[t] (NORM 0), stored if KEEP is 1; then H(signs * y) for
// each WIDTH columns, quantized (rotate_quantize.glsl). x, y f32[rows, width]; gamma, signs f32[width]; q i8[rows,
// width]; scale f32, qsum i32 [rows, width / 32]. One workgroup per TILE_N * WIDTH columns of a row; each sums the
// squares of the whole row.
layout(std430, binding = 0) readonly buffer X { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer Gamma { vec4 gamma4[]; };
layout(std430, binding = 2) readonly buffer Signs { vec4 signs4[]; };
layout(std430, binding = 3) writeonly buffer Y { vec4 kept4[]; };
layout(std430, binding = 4) writeonly buffer Q { uint q[]; };
layout(std430, binding = 5) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 6) writeonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, width, block; float eps; } p;

#include "norm_rotate.glsl"

void main() { norm_rotate(); }
