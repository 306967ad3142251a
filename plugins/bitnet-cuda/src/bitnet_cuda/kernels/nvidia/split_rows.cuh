// Rows of x as integers of 22 bits, for approximate logits: each row is scaled by a power of two that brings its largest
// value into [1, 2), rounded to integers of 2^-21 and split into three signed bytes with factors 2^16, 2^8 and 1.
// Spans of SPAN_T rows follow each other, in chunks of 128 columns: three planes of SPAN_T rows of 128 bytes, whose
// 16-byte words are swizzled by row as in the 128-byte mode. Then come, for each row, the biased exponent of its power of
// two (0 if a value is not finite) and its length.
#define CHUNK (3 * SPAN_T * 8)  // 16-byte words of a chunk

__device__ inline u32 exponent_for(u32 largest) {
    u32 exponent = largest >> 23;
    return exponent == 255 ? 0 : max(254 - max(exponent, 1u), 1u);
}

// Returns the signed bytes of an integer of 2^-21 in [-2^22, 2^22] with factors 2^16, 2^8 and 1, as bytes 2, 1, 0.
__device__ inline u32 digits(float v) {
    u32 integer = __float_as_uint(v * 0x1p21f + 12582912.0f) - 0x4b400000u;
    return integer + 0x808080u ^ 0x808080u;
}
