// norm_matmul of two to eight rows: see norm_matmul_few.clh.
#define ENTRY norm_matmul_few
#define STORED 1
#define MATRIX_ROW(tile, which, g) min(n0 + 16 * (tile) + 8 * (which) + (g), outs - 1)
// What the output is before, if it is added to, and scales of rows.
#define PREPARE                                                                          \
    AT_OUT(float, y);                                                                   \
    float before[PER_ITEM], unit[PER_ITEM];                                              \
    UNROLL                                                                               \
    for (uint k = 0; k < PER_ITEM; ++k) {                                                \
        const uint e = lid + k * GROUP, n = min(n0 + e % TILE_N, outs - 1);              \
        before[k] = ADD ? load_now(y + (ulong)min(e / TILE_N, rows - 1) * y_stride + y_first + n) : 0; \
        unit[k] = BLOCK ? 1 : load_now(wscale + n);                                      \
    }
#define STORE                                                                            \
    y[(ulong)row * y_stride + y_first + n] =                                             \
        before[k] + of_parts(parts, row, e % TILE_N, scale, qsum, unit[k]);
#include "norm_matmul_few.clh"
