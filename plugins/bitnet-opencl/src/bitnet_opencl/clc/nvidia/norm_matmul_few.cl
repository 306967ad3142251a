// norm_matmul of two to eight rows on tensor cores (norm_matmul_few.clh). Formula and shapes as in norm_matmul.cl.
#define STORED 1
#define MATRIX_ROW(tile, which, g) min(n0 + 16 * (tile) + 8 * (which) + (g), outs - 1)
#include "norm_matmul_few.clh"

KERNEL norm_matmul_few(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, wscale);
    AT_OUT(float, y);
    const uint lid = get_local_id(0), n0 = get_group_id(0) * TILE_N;
    float before[PER_ITEM], unit[PER_ITEM];  // loaded early: the old outputs, if they are added to, and scales of rows
    UNROLL
    for (uint k = 0; k < PER_ITEM; ++k) {
        const uint e = lid + k * GROUP, n = min(n0 + e % TILE_N, outs - 1);
        before[k] = ADD ? load_now(y + (ulong)min(e / TILE_N, rows - 1) * y_stride + y_first + n) : 0;
        unit[k] = BLOCK ? 1 : load_now(wscale + n);
    }
#include "norm_few_sums.clh"
    UNROLL
    for (uint k = 0; k < PER_ITEM; ++k) {
        const uint e = lid + k * GROUP, row = e / TILE_N, n = n0 + e % TILE_N;
        if (row >= rows || n >= outs) continue;
        y[(ulong)row * y_stride + y_first + n] = before[k] + of_parts(parts, row, e % TILE_N, scale, qsum, unit[k]);
    }
}
