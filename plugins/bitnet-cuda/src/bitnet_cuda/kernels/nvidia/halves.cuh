// Pairs of f16 in a word.
// The low, or high, halves of two words as one word.
__device__ inline u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
__device__ inline u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }

// Two f32 as a pair of f16 in one word, and what rounding took from them as another: together 22 bits of mantissa.
__device__ inline void split_halves(float a, float b, u32& high, u32& low) {
    high = pack_halves(a, b);
    low = pack_halves(a - half_to_float((u16)high), b - half_to_float((u16)(high >> 16)));
}
