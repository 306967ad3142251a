#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// Int8 copy of w f16[N, K], K a multiple of 4: scale[n] = max|w[n]| / 127, codes[n,k] = round(w[n,k] / scale[n]),
// error[n] = 1.002 (|w[n] - scale[n] codes[n]| + r |w[n]|), r = 3 (K + 64) 2^-24. A row with a NaN or Inf gets scale
// NaN, codes and error 0. A subgroup processes TILE_N / WAVES rows in sequence.
layout(std430, binding = 0) readonly buffer W { uvec2 w[]; };
layout(std430, binding = 1) writeonly buffer Codes { uint codes[]; };
layout(std430, binding = 2) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 3) writeonly buffer Error { float error[]; };
layout(push_constant) uniform Params { uint outs, width; } p;

vec4 four(uvec2 packed) { return vec4(unpackHalf2x16(packed.x), unpackHalf2x16(packed.y)); }

void main() {
    uint lane = gl_SubgroupInvocationID, words = p.width / 4;
    for (uint i = gl_SubgroupID; i < TILE_N; i += WAVES) {
        uint n = gl_WorkGroupID.x * TILE_N + i;
        if (n >= p.outs) return;
        uint largest = 0;
        for (uint k = lane; k < words; k += WAVE) {
            uvec4 bits = floatBitsToUint(four(w[n * words + k])) & 0x7fffffffu;
            largest = max(largest, max(max(bits.x, bits.y), max(bits.z, bits.w)));
        }
        float most = uintBitsToFloat(subgroupMax(largest));
        bool bad = not_finite(most);
        float unit = most / 127.0, inverse = bad || unit == 0.0 ? 0.0 : 1.0 / unit, apart = 0.0, size = 0.0;
        for (uint k = lane; k < words; k += WAVE) {
            vec4 v = bad ? vec4(0.0) : four(w[n * words + k]), code = clamp(roundEven(v * inverse), -127.0, 127.0);
            vec4 rest = bad ? vec4(0.0) : v - code * unit;
            uvec4 bytes = uvec4(ivec4(code)) & 255u;
            codes[n * words + k] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
            apart += dot(rest, rest);
            size += dot(v, v);
        }
        apart = subgroupAdd(apart);
        size = subgroupAdd(size);
        if (!subgroupElect()) continue;
        float rounding = 3.0 * float(p.width + 64) / 16777216.0;
        scale[n] = bad ? uintBitsToFloat(NAN_BITS) : unit;
        error[n] = (sqrt(apart) + rounding * sqrt(size)) * 1.002;
    }
}
