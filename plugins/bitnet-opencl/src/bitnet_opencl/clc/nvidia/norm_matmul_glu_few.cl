// norm_matmul_glu of two to eight rows: see norm_matmul_few.clh. Eight rows of the gate are a tile with eight rows of up.
#define ENTRY norm_matmul_glu_few
#define STORED 2
#define MATRIX_ROW(tile, which, g) ((which) * outs + min(n0 + 8 * (tile) + (g), outs - 1))
#define PREPARE                                                                          \
    AT_OUT(float, m);                                                                   \
    float unit[PER_ITEM][2];                                                             \
    UNROLL                                                                               \
    for (uint k = 0; k < 2 * PER_ITEM; ++k) {                                            \
        const uint n = min(n0 + (lid + k / 2 * GROUP) % TILE_N, outs - 1);               \
        unit[k / 2][k % 2] = BLOCK ? 1 : load_now(wscale + k % 2 * outs + n);            \
    }
#define STORE                                                                            \
    const uint which = e % TILE_N / 8 * 16 + e % 8;                                      \
    m[(ulong)row * outs + n] = gated(of_parts(parts, row, which, scale, qsum, unit[k][0]), \
                                     of_parts(parts, row, which + 8, scale, qsum, unit[k][1]));
#include "glu.clh"
#include "norm_matmul_few.clh"
