// gated_rotate_quantize of the transform of a workgroup. Requires x4, gate4, gamma4, signs4, q, scale and qsum.
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

void gated_rotate() {
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
