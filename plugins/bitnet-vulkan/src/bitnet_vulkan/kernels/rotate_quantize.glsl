// H z of 4 * GROUP columns, four neighbouring ones for each invocation (hadamard.glsl); then int8
// codes: a = max(max|y|, 1e-20) over ABLOCK columns, q = round_half_even(y * (127 / a)), and for each 32 columns scale
// = a / 127 and qsum = sum q. ABLOCK columns with a value that is not finite get scale NaN and codes 0.
// The including kernel has the bindings q, scale and qsum.
#include "hadamard_factor.glsl"
#ifndef TRANSFORMS
#define TRANSFORMS TILE_N  // of a workgroup; a kernel with a product has other tiles
#endif

#ifdef SUBGROUP
shared vec4 exchanged[GROUP];

// Returns the transform without its factor: distances below 4 stay in an invocation and others in a subgroup; the rest
// is a sum over the subgroups.
vec4 hadamard_of(vec4 z) {
    z = vec4(z.x + z.y, z.x - z.y, z.z + z.w, z.z - z.w);
    z = vec4(z.xy + z.zw, z.xy - z.zw);
    uint lane = gl_SubgroupInvocationID;
    [[unroll]] for (uint d = 1; d < WAVE; d *= 2) {
        vec4 other = subgroupShuffleXor(z, d);
        z = (lane & d) != 0 ? other - z : z + other;
    }
    if (WAVES == 1) return z;
    if (TRANSFORMS > 1) barrier();  // others may still read the columns before these
    exchanged[LID] = z;
    barrier();
    z = vec4(0.0);
    [[unroll]] for (uint i = 0; i < WAVES; i++) {
        vec4 part = exchanged[i * WAVE + lane];
        z += bitCount(i & gl_SubgroupID) % 2 == 1 ? -part : part;
    }
    return z;
}
#else
#include "hadamard.glsl"
vec4 hadamard_of(vec4 z) {
    v[4 * LID] = z.x;
    v[4 * LID + 1] = z.y;
    v[4 * LID + 2] = z.z;
    v[4 * LID + 3] = z.w;
    hadamard();
    return vec4(v[4 * LID], v[4 * LID + 1], v[4 * LID + 2], v[4 * LID + 3]);
}
#endif

// word: of the row; row: its first word in q.
void rotate_quantize(uint row, uint word, vec4 z) {
    z = hadamard_of(z) * hadamard_factor(4 * GROUP);
    uvec4 bits = floatBitsToUint(z) & 0x7fffffffu;  // bits have the order of numbers, with NaN above all
    float most = uintBitsToFloat(max_of_near(max(max(bits.x, bits.y), max(bits.z, bits.w)), ABLOCK / 4));
    bool bad = not_finite(most);
    float a = max(most, 1e-20);
    ivec4 code = bad ? ivec4(0) : ivec4(clamp(roundEven(z * (127.0 / a)), -128.0, 127.0));
    uvec4 bytes = uvec4(code) & 255u;
    q[row + word] = bytes.x | bytes.y << 8 | bytes.z << 16 | bytes.w << 24;
    int sum = sum_of_8(code.x + code.y + code.z + code.w);
    if (LID % 8 != 0) return;
    scale[(row + word) / 8] = bad ? uintBitsToFloat(NAN_BITS) : a / 127.0;
    qsum[(row + word) / 8] = sum;
}
