// The emulator's warpgroup products.
// wgmma m64k32 u8.s8, one warp's 16 rows at a time: tokens in rows of 128 bytes, 16-byte words swizzled by row.
inline void warpgroup_product(int* c, const unsigned* a, const void* tokens, unsigned plane, int count) {
    unsigned g = simt::lane() / 4, t = simt::lane() % 4;
    for (int i = 0; i < count / 8; i++) {
        const unsigned* row = (const unsigned*)tokens + (8 * i + g) * 32;
        mma(c + 4 * i, a, row[(2 * plane ^ g) * 4 + t], row[((2 * plane + 1) ^ g) * 4 + t]);
    }
}
#define warpgroup_mma(c, a, tokens, plane) warpgroup_product(c, a, tokens, plane, TILE_T)
inline void warpgroup_arrive() {}
inline void warpgroup_wait() {}
inline void show_to_tensor_cores() {}
