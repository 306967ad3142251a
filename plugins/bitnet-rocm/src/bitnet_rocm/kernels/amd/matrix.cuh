// Matrix cores: MFMA of CDNA (gfx90a, gfx942; waves of 64 threads) and WMMA of RDNA (gfx11, gfx12; waves of 32), signed
// bytes with exact 32-bit sums. One product adds the 16 x 16 sums of 16 rows of activations times 16 weight rows over
// 32 columns.
// Lane l has row l % 16 of both, and of its 32 columns the PART words from word_of(l) on; any assignment of columns is
// valid as long as both operands agree. Of the sums lane l has weight row l % 16 and the activations' rows row_of(l, 0
// .. SUMS - 1). The layouts are those of AMD's ISA manuals; the tests' emulator has them element by element.
#if defined(__gfx90a__) || defined(__gfx942__)
#define WAVE_SIZE 64
#define PART 2
#define SUMS 4
#else
#define WAVE_SIZE 32
#define SUMS 8
#if defined(__GFX11__)
#define PART 8  // the upper half of the wave holds the same as the lower
#else
#define PART 4
#endif
#endif

typedef int TwoInts __attribute__((ext_vector_type(2)));
typedef int FourInts __attribute__((ext_vector_type(4)));
typedef int Sums __attribute__((ext_vector_type(SUMS)));

__device__ inline u32 word_of(u32 lane) { return PART == 8 ? 0 : lane / 16 * PART; }
__device__ inline u32 row_of(u32 lane, u32 i) {
#if defined(__GFX11__)
    return 2 * i + lane / 16;
#else
    return lane / 16 * SUMS + i;
#endif
}

__device__ inline Sums product(const u32* a, const u32* b, Sums c) {
#if defined(__gfx942__)
    long x = (long)a[0] | (long)a[1] << 32, y = (long)b[0] | (long)b[1] << 32;
    return __builtin_amdgcn_mfma_i32_16x16x32_i8(x, y, c, 0, 0, 0);
#elif defined(__gfx90a__)
    for (int i = 0; i < 2; i++) c = __builtin_amdgcn_mfma_i32_16x16x16i8((int)a[i], (int)b[i], c, 0, 0, 0);
    return c;
#elif defined(__GFX11__)
    for (int i = 0; i < 8; i += 4) {
        FourInts x = {(int)a[i], (int)a[i + 1], (int)a[i + 2], (int)a[i + 3]};
        FourInts y = {(int)b[i], (int)b[i + 1], (int)b[i + 2], (int)b[i + 3]};
        c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x, true, y, c, false);
    }
    return c;
#else
    for (int i = 0; i < 4; i += 2) {
        TwoInts x = {(int)a[i], (int)a[i + 1]}, y = {(int)b[i], (int)b[i + 1]};
        c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x, true, y, c, false);
    }
    return c;
#endif
}
