// Returns whether row l may choose token i: bit i % 32 of word i / 32 of its mask (MASK 1), or always (MASK 0).
__device__ inline bool allowed(const u32* mask, u32 l, u32 vocab, u32 i) {
    return !MASK || (mask[(size_t)l * ((vocab + 31) / 32) + i / 32] >> i % 32 & 1u);
}
