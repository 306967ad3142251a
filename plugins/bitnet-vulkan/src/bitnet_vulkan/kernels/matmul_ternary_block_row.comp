#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
// matmul_ternary_block of one row with activation scales (ABLOCK is not 0), formula as in matmul_ternary_block.comp.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q4[]; };
layout(std430, binding = 3) readonly buffer Scale { vec4 scale4[]; };
layout(std430, binding = 4) readonly buffer Qsum { ivec4 qsum4[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

#include "product_row.glsl"

void main() {
#include "product_row_load.glsl"
#include "product_row_multiply.glsl"
}
