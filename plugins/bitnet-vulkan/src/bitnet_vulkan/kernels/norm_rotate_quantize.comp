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
layout(std430, binding = 3) writeonly buffer Y { vec4 y4[]; };
layout(std430, binding = 4) writeonly buffer Q { uint q[]; };
layout(std430, binding = 5) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 6) writeonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, width, block; float eps; } p;

#include "rotate_quantize.glsl"

void main() {
    uint words = p.width / 4, row = gl_WorkGroupID.y * words, begin = gl_WorkGroupID.x * TILE_N * GROUP;
    // Loaded before the group synchronizes, as no cache has gamma.
    uint word = begin + LID;
    vec4 z = x4[row + word], gain = NORM == 1 ? gamma4[word] : vec4(1.0), signs = signs4[word];
    float inverse = 1.0;
    if (NORM == 1) {
        vec4 squares = vec4(0.0);
        for (uint from = LID; from < words; from += 8 * GROUP)
            [[unroll]] for (uint j = 0; j < 8; j++) {
                uint i = from + j * GROUP;
                vec4 own = i < words ? x4[row + i] : vec4(0.0);
                squares += own * own;
            }
        float sum = group_sum(squares.x + squares.y + (squares.z + squares.w));
        inverse = not_finite(sum) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(sum / float(p.width) + p.eps);
    }
    for (uint first = begin; first < min(begin + TILE_N * GROUP, words); first += GROUP) {
        if (first > begin) {
            word = first + LID;
            z = x4[row + word];
            gain = NORM == 1 ? gamma4[word] : vec4(1.0);
            signs = signs4[word];
        }
        if (NORM == 1) z = z * inverse * gain;
        if (KEEP == 1) y4[row + word] = z;
        rotate_quantize(row, word, z * signs);
    }
}
