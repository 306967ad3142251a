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

#include "rotate_quantize.glsl"

const uint WORDS = DIM / 4;
shared float squares[GROUP];

// Returns the sum over the invocations of a head.
float head_sum(float v) {
#ifdef SUBGROUP
    if (WORDS <= WAVE && (WORDS & (WORDS - 1)) == 0) {
        [[unroll]] for (uint d = WORDS / 2; d > 0; d >>= 1) v += subgroupShuffleXor(v, d);
        return v;
    }
#endif
    squares[LID] = v;
    barrier();
    v = 0.0;
    for (uint i = 0; i < WORDS; i++) v += squares[LID / WORDS * WORDS + i];
    return v;
}

void main() {
    uint row = gl_WorkGroupID.y * p.n_heads * WORDS, word = gl_WorkGroupID.x * GROUP + LID;
    uint to = word / WORDS, per_group = p.n_heads / p.groups;
    uint from = row + (to % per_group * p.groups + to / per_group) * WORDS + word % WORDS;
    vec4 z = x4[from], a = gate4[from], signs = signs4[word];
    if (NORM == 1) {
        vec4 gain = gamma4[word % WORDS];
        float sum = head_sum(z.x * z.x + z.y * z.y + (z.z * z.z + z.w * z.w));
        z = z * (not_finite(sum) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(sum / float(DIM) + p.eps)) * gain;
    }
    rotate_quantize(row, word, z * ((ACT == 1 ? a : vec4(1.0)) / (1.0 + exp(-a))) * signs);
}
