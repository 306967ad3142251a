#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// logits[l,n] = scale[n] * sum_k codes[n,k] x[l,k], f32 sums; bound[l,g] = max(logits[l,n] - error[n] |x[l]|) over the
// 64 rows n of group g, NaN if one of these is not finite. A workgroup computes one group; a subgroup processes BATCH
// rows at a time. WIDTH: columns, a multiple of 4.
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer Codes { uint codes[]; };
layout(std430, binding = 1) readonly buffer Codes4 { uvec4 codes4[]; };
layout(std430, binding = 2) readonly buffer Scale { float scale[]; };
layout(std430, binding = 3) readonly buffer Error { float error[]; };
layout(std430, binding = 4) buffer Logits { float logits[]; };
layout(std430, binding = 5) writeonly buffer Bound { float bound[]; };
layout(push_constant) uniform Params { uint rows, outs, width, stride; } p;

const uint WORDS = WIDTH / 4, CHUNKS = (WIDTH + 15) / 16, SIDE = 64;
const float LOWEST = -3.4e38, SLACK = 1.000003;  // SLACK exceeds the error of a sum of squares in f32
shared float best[WAVES];
shared uint spoiled[WAVES];

uvec4 load(uint n, uint c) {
    if (WIDTH % 16 == 0) return codes4[n * CHUNKS + c];
    uvec4 four = uvec4(0);
    [[unroll]] for (uint i = 0; i < 4; i++)
        if (4 * c + i < WORDS) four[i] = codes[n * WORDS + 4 * c + i];
    return four;
}

// The lowest bits of 2^23 + 128 are the byte: subtracting that number converts it exactly; integer conversions are slow
// on some GPUs.
float dot_of(uint word, vec4 v, float sum) {
    word ^= 0x80808080u;
    [[unroll]] for (int i = 0; i < 4; i++)
        sum += (uintBitsToFloat(0x4b000000u | bitfieldExtract(word, 8 * i, 8)) - 8388736.0) * v[i];
    return sum;
}

void main() {
    uint lane = gl_SubgroupInvocationID, first = gl_WorkGroupID.x * SIDE, l = gl_WorkGroupID.y;
    float low = LOWEST;
    uint bad = 0;
    for (uint row = gl_SubgroupID * BATCH; row < SIDE; row += WAVES * BATCH) {
        uint n0 = first + row;
        if (n0 >= p.outs) break;
        float sums[BATCH], squares = 0.0;
        [[unroll]] for (uint r = 0; r < BATCH; r++) sums[r] = 0.0;
        for (uint c = lane; c < CHUNKS; c += WAVE) {
            uvec4 packed[BATCH];
            [[unroll]] for (uint r = 0; r < BATCH; r++) packed[r] = load(min(n0 + r, p.outs - 1), c);
            [[unroll]] for (uint j = 0; j < 4; j++) {
                vec4 v = WIDTH % 16 == 0 || 4 * c + j < WORDS ? x[l * WORDS + 4 * c + j] : vec4(0.0);
                squares += dot(v, v);
                [[unroll]] for (uint r = 0; r < BATCH; r++) sums[r] = dot_of(packed[r][j], v, sums[r]);
            }
        }
        float size = sqrt(subgroupAdd(squares)) * SLACK;
        [[unroll]] for (uint r = 0; r < BATCH; r++) {
            uint n = n0 + r;
            float value = subgroupAdd(sums[r]);
            if (n >= p.outs) continue;
            value *= scale[n];
            float least = value - error[n] * size;
            if (not_finite(least)) bad = 1;
            else low = max(low, least);
            if (lane == r % WAVE) logits[l * p.stride + n] = value;
        }
    }
    if (subgroupElect()) {
        best[gl_SubgroupID] = low;
        spoiled[gl_SubgroupID] = bad;
    }
    barrier();
    if (LID != 0) return;
    [[unroll]] for (uint i = 0; i < WAVES; i++) {
        low = max(low, best[i]);
        bad |= spoiled[i];
    }
    bound[l * ((p.outs + SIDE - 1) / SIDE) + gl_WorkGroupID.x] = bad != 0 ? uintBitsToFloat(NAN_BITS) : low;
}
