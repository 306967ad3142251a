// matmul_ternary for many rows (prompts), in tiles (ternary_tile.clh). Formula and shapes as in matmul_ternary.cl.
#define CODES(word, plane) PLANE(word, plane)
#define DOT dot4
#include "ternary_tile.clh"

KERNEL matmul_ternary_tiled(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint, w);
    AT_IN(float, wscale);
    AT_IN(uint, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
    __local uint codes[TILE_N * PITCH], columns[TILE_T * PITCH];
    const uint n0 = get_group_id(0) * TILE_N, t0 = get_group_id(1) * TILE_T, blocks = width / 128;
    int acc[4][4];
    UNROLL
    for (uint i = 0; i < 4; ++i)
        UNROLL
        for (uint j = 0; j < 4; ++j) acc[i][j] = 0;
    for (uint b = 0; b < blocks; ++b) {
        load_tile(codes, columns, w, q, n0, t0, b, blocks, outs, rows);
        multiply_tile(acc, codes, columns, 0, 32);
    }
#define VALUE(i, j, n, t) (float)(acc[i][j] - qsum[t]) * scale[t] * wscale[n]
    STORE_TILE(VALUE)
}
