// norm_rotate_quantize of the transforms of a workgroup. Requires x4, gamma4, signs4, kept4, q, scale and qsum.
#include "rotate_quantize.glsl"

void norm_rotate() {
    uint words = p.width / 4, row = gl_WorkGroupID.y * words, begin = gl_WorkGroupID.x * TRANSFORMS * GROUP;
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
    for (uint first = begin; first < min(begin + TRANSFORMS * GROUP, words); first += GROUP) {
        if (first > begin) {
            word = first + LID;
            z = x4[row + word];
            gain = NORM == 1 ? gamma4[word] : vec4(1.0);
            signs = signs4[word];
        }
        if (NORM == 1) z = z * inverse * gain;
        if (KEEP == 1) kept4[row + word] = z;
        rotate_quantize(row, word, z * signs);
    }
}
