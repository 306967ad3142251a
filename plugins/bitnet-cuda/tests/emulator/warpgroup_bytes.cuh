// The emulator's warpgroup products of bytes: m64k32 of s8, one warp's 16 rows at a time; both factors in rows of 128 bytes,
// 16-byte words swizzled by row.
#include "warpgroup_group.cuh"
inline void warpgroup_mma_bytes(int* c, const void* a, const void* b, unsigned offset, bool add) {
    unsigned g = simt::lane() / 4, t = simt::lane() % 4, first = simt::block->current / 32 % 4 * 16;
    auto word = [&](const void* rows, unsigned row, unsigned half) {
        return ((const unsigned*)rows)[row * 32 + ((offset / 16 + half) ^ row % 8) * 4 + t];
    };
    for (int i = 0; i < COLUMNS / 2; i++) c[i] = add ? c[i] : 0;
    unsigned own[4];
    for (unsigned i = 0; i < 4; i++) own[i] = word(a, first + g + i % 2 * 8, i / 2);
    for (unsigned i = 0; i < COLUMNS / 8; i++) mma_signed(c + 4 * i, own, word(b, 8 * i + g, 0), word(b, 8 * i + g, 1));
}
