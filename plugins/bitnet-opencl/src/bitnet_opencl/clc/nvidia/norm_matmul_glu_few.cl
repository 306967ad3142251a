// norm_matmul_glu of two to eight rows on tensor cores (norm_matmul_few.clh). A tile has eight rows of the gate and
// eight of up. Formula and shapes as in norm_matmul_glu.cl.
#define STORED 2
#define MATRIX_ROW(tile, which, g) ((which) * outs + min(n0 + 8 * (tile) + (g), outs - 1))
#include "glu.clh"
#include "norm_matmul_few.clh"

KERNEL norm_matmul_glu_few(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, wscale);
    AT_OUT(float, m);
    const uint lid = get_local_id(0), n0 = get_group_id(0) * TILE_N;
    float unit[PER_ITEM][2];  // scales of rows, loaded early
    UNROLL
    for (uint k = 0; k < 2 * PER_ITEM; ++k) {
        const uint n = min(n0 + (lid + k / 2 * GROUP) % TILE_N, outs - 1);
        unit[k / 2][k % 2] = BLOCK ? 1 : load_now(wscale + k % 2 * outs + n);
    }
#include "norm_few_sums.clh"
    UNROLL
    for (uint k = 0; k < PER_ITEM; ++k) {
        const uint e = lid + k * GROUP, row = e / TILE_N, n = n0 + e % TILE_N;
        if (row >= rows || n >= outs) continue;
        const uint which = e % TILE_N / 8 * 16 + e % 8;
        m[(ulong)row * outs + n] = gated(of_parts(parts, row, which, scale, qsum, unit[k][0]),
                                         of_parts(parts, row, which + 8, scale, qsum, unit[k][1]));
    }
}
