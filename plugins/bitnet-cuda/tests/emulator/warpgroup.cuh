// The emulator's warpgroup products.
#include "warpgroup_group.cuh"
#ifndef COLUMNS
#define COLUMNS SPAN_T
#endif
// wgmma m64k32 of CODE and s8, one warp's 16 rows at a time: tokens in rows of 128 bytes, 16-byte words swizzled by row.
inline void warpgroup_product(int* c, const unsigned* a, const void* tokens, unsigned plane, int count, bool add) {
    for (int i = 0; i < count / 2; i++) c[i] = add ? c[i] : 0;
    unsigned g = simt::lane() / 4, t = simt::lane() % 4;
    for (int i = 0; i < count / 8; i++) {
        const unsigned* row = (const unsigned*)tokens + (8 * i + g) * 32;
        unsigned b0 = row[(2 * plane ^ g) * 4 + t], b1 = row[((2 * plane + 1) ^ g) * 4 + t];
        CODE[0] == 's' ? mma_signed(c + 4 * i, a, b0, b1) : mma(c + 4 * i, a, b0, b1);
    }
}
#define warpgroup_mma(c, a, tokens, plane, add) warpgroup_product(c, a, tokens, plane, COLUMNS, add)
