// One element of a dense table. The including kernel defines uint table_word(uint i), the 32-bit words of the table.
// DTYPE 0 f32, 1 f16, 2 bf16, 3 q8_0 (32 elements in 34 bytes: f16 d, i8[32]), 4 q6_K (256 elements in 210 bytes:
// ql[128], qh[64], i8 scales[16], f16 d; value = d * scale * (q - 32)).
uint table_byte(uint i) { return (table_word(i >> 2) >> (8 * (i & 3u))) & 255u; }
float table_half(uint at) { return unpackHalf2x16(table_byte(at) | (table_byte(at + 1) << 8)).x; }

float table_element(uint i) {
    if (DTYPE == 0) return uintBitsToFloat(table_word(i));
    if (DTYPE == 1) {
        vec2 pair = unpackHalf2x16(table_word(i >> 1));
        return (i & 1u) == 0 ? pair.x : pair.y;
    }
    if (DTYPE == 2) {
        uint word = table_word(i >> 1);
        return uintBitsToFloat((i & 1u) == 0 ? word << 16 : word & 0xffff0000u);
    }
    if (DTYPE == 3) {
        uint at = i / 32 * 34;
        return table_half(at) * float(signed_byte(table_byte(at + 2 + i % 32), 0));
    }
    uint at = i / 256 * 210, e = i % 256, half_ = e / 128, quarter = e % 128 / 32, l = e % 32;
    uint low = table_byte(at + 64 * half_ + 32 * (quarter & 1u) + l);
    low = quarter < 2 ? low & 15u : low >> 4;
    uint high = (table_byte(at + 128 + 32 * half_ + l) >> (2 * quarter)) & 3u;
    float scale = table_half(at + 208) * float(signed_byte(table_byte(at + 192 + e / 16), 0));
    return scale * float(int(low | (high << 4)) - 32);
}
