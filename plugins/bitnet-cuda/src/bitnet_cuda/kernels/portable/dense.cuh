// One element of a dense table. DTYPE 0 f32, 1 f16, 2 bf16, 3 q8_0 (32 elements in 34 bytes: f16 d, i8[32]),
// 4 q6_K (256 elements in 210 bytes: ql[128], qh[64], i8 scales[16], f16 d; value = d * scale * (q - 32)).
__device__ inline float half_at(const u8* p) { return half_to_float((u16)(p[0] | p[1] << 8)); }

__device__ inline float table_element(const u8* table, size_t i) {
#if DTYPE == 0
    return ((const float*)table)[i];
#elif DTYPE == 1
    return half_to_float(((const u16*)table)[i]);
#elif DTYPE == 2
    return __uint_as_float((u32)((const u16*)table)[i] << 16);
#elif DTYPE == 3
    const u8* block = table + i / 32 * 34;
    return half_at(block) * (float)(signed char)block[2 + i % 32];
#else
    const u8* block = table + i / 256 * 210;
    u32 e = i % 256, half = e / 128, quarter = e % 128 / 32, l = e % 32;
    u32 low = block[64 * half + 32 * (quarter & 1u) + l];
    low = quarter < 2 ? low & 15u : low >> 4;
    u32 high = (block[128 + 32 * half + l] >> (2 * quarter)) & 3u;
    float scale = half_at(block + 208) * (float)(signed char)block[192 + e / 16];
    return scale * (float)((int)(low | high << 4) - 32);
#endif
}
