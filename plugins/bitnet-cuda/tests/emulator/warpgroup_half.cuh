// The emulator's warpgroup products of f16: m64n64k16, one warp's 16 rows at a time; b in rows of 128 bytes, 16-byte words
// swizzled by row, a row for each column (TRANSPOSED 0) or each row of b.
#include "warpgroup_group.cuh"
template <int TRANSPOSED, int COLUMNS = 64>
void warpgroup_mma_half(float* c, const unsigned* a, const void* b, unsigned offset, bool add) {
    auto at = [&](unsigned k, unsigned n) -> unsigned {
        unsigned row = TRANSPOSED ? offset / 128 + k : n, byte = 2 * (TRANSPOSED ? n : k) + (TRANSPOSED ? 0 : offset);
        return *(const unsigned short*)((const char*)b + 128 * row + ((byte / 16 ^ row) % 8) * 16 + byte % 16);
    };
    for (int i = 0; i < COLUMNS / 2; i++) c[i] = add ? c[i] : 0;
    unsigned g = simt::lane() / 4, t = simt::lane() % 4;
    for (unsigned i = 0; i < COLUMNS / 8; i++)
        mma_half(c + 4 * i, a, at(2 * t, 8 * i + g) | at(2 * t + 1, 8 * i + g) << 16,
                 at(2 * t + 8, 8 * i + g) | at(2 * t + 9, 8 * i + g) << 16);
}
template <int ROWS>
void warpgroup_mma_half_rows(float* c, const unsigned* a, const void* b, unsigned offset, bool add) {
    warpgroup_mma_half<0, 64>(c, a, b, offset, add);
    warpgroup_mma_half<0, ROWS - 64>(c + 32, a, (const char*)b + 64 * 128, offset, add);
}
