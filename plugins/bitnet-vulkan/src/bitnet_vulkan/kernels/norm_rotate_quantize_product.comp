#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
// norm_rotate_quantize of one row, then matmul_ternary_block of the result (handover.glsl).
layout(std430, binding = 0) readonly buffer X { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer Gamma { vec4 gamma4[]; };
layout(std430, binding = 2) readonly buffer Signs { vec4 signs4[]; };
layout(std430, binding = 3) writeonly buffer Kept { vec4 kept4[]; };
layout(push_constant) uniform Params { uint rows, width, block; float eps; uint outs, y_first; } p;

#define FIRST 4
#include "handover.glsl"
#include "norm_rotate.glsl"
#include "product_row.glsl"

void main() {
#include "product_row_load.glsl"
    uint rotations = p.width / p.block;
    if (gl_WorkGroupID.x < rotations) {
        norm_rotate();
        hand_over();
    }
    if (!take_over(rotations))
        [[unroll]] for (uint r = 0; r < ROWS_PER; r++) units[r] = vec2(uintBitsToFloat(NAN_BITS));
#include "product_row_multiply.glsl"
}
