// Pairs of f16 in a word.
// Returns the low, or high, halves of two words as one word.
__device__ inline u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
__device__ inline u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }

// Splits two f32 into a pair of f16 in one word, and the pair of their rounding errors in another: together 22 bits of
// mantissa.
__device__ inline void split_halves(float a, float b, u32& high, u32& low) {
    high = pack_halves(a, b);
    low = pack_halves(a - half_to_float((u16)high), b - half_to_float((u16)(high >> 16)));
}

// Returns signed bytes i and j of a word as f16. The lowest bits of 1024 + 128 + byte are the byte with its sign
// inverted.
__device__ inline u32 byte_halves(u32 word, u32 i, u32 j) {
    u32 from_1024 = __byte_perm(word ^ 0x80808080u, 0x64646464u, 0x4040u | j << 8 | i);
    return multiply_add_halves(from_1024, 0x3c003c00u, 0xe480e480u);
}
