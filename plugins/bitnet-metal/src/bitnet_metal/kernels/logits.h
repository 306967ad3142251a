// Logits as integers in the same order: NaN is the largest, and masked logits are 0.
// mask i32[rows, ceil(vocab / 32)], used if MASK is 1.
inline uint ordered(float x) {
    if (is_nan(x)) return 0xffffffffu;
    uint bits = size_bits(x) == 0 ? 0u : as_type<uint>(x);  // -0 equals 0
    return bits >> 31 == 1 ? ~bits : bits | 0x80000000u;
}

struct Row {
    device const float *logits;  // of this row; so is the mask
    device const uint *mask;
    bool allowed(uint token) const { return MASK == 0 || (mask[token / 32] >> (token % 32) & 1) == 1; }
    uint key(uint token) const { return allowed(token) ? ordered(logits[token]) : 0u; }
};
