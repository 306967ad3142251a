#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y = gated_rms_norm of x, gate and gamma (gated_rms_norm.comp); then H(signs * y) for each WIDTH columns, quantized
// (rotate_quantize.glsl). x, gate f32[rows, n_heads, DIM]; gamma f32[DIM]; signs f32[n_heads * DIM]; q i8, scale f32,
// qsum i32 as in glu_rotate_quantize.comp. One workgroup per WIDTH columns of a row, which are whole heads if NORM is
// 1.
layout(std430, binding = 0) readonly buffer X { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer Gate { vec4 gate4[]; };
layout(std430, binding = 2) readonly buffer Gamma { vec4 gamma4[]; };
layout(std430, binding = 3) readonly buffer Signs { vec4 signs4[]; };
layout(std430, binding = 4) writeonly buffer Q { uint q[]; };
layout(std430, binding = 5) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 6) writeonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, n_heads, head_dim, groups, block; float eps; } p;

#include "gated_rotate.glsl"

void main() { gated_rotate(); }
