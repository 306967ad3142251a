// H(signs * z) of WIDTH columns (hadamard.glsl), four neighbouring ones for each of WIDTH / 4 invocations; then int8
// codes: a = max(max|y|, 1e-20) over ABLOCK columns, q = round_half_even(y * (127 / a)), and for each 32 columns scale
// = a / 127 and qsum = sum q. ABLOCK columns with a value that is not finite get scale NaN and codes 0.
// The including kernel has the bindings signs4, q, scale and qsum.
#include "hadamard.glsl"

// word: of the row; row: its first word in q.
void rotate_quantize(uint row, uint word, vec4 z) {
    z *= signs4[word];
    v[4 * LID] = z.x;
    v[4 * LID + 1] = z.y;
    v[4 * LID + 2] = z.z;
    v[4 * LID + 3] = z.w;
    hadamard();
    z = vec4(v[4 * LID], v[4 * LID + 1], v[4 * LID + 2], v[4 * LID + 3]) * hadamard_factor();
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
