// matmul_ternary_block for many rows (prompts), in tiles (ternary_tile.clh) of codes as -1, 0, 1. Formula and shapes as
// in matmul_ternary_block.cl.
#define CODES(word, plane) SIGNED(PLANE(word, plane))
#define DOT dot4_signed
#include "ternary_tile.clh"
#define SPAN (ABLOCK ? 8 : BLOCK == 64 ? 16 : 32)  // words of columns that share both scales

KERNEL matmul_ternary_block_tiled(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint, w);
    AT_IN(float, wscale);
    AT_IN(uint, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
    __local uint codes[TILE_N * PITCH], columns[TILE_T * PITCH];
    const uint n_lane = get_local_id(0) % SIDE_N, t_lane = get_local_id(0) / SIDE_N;
    const uint n0 = get_group_id(0) * TILE_N, t0 = get_group_id(1) * TILE_T, blocks = width / 128;
    float sums[4][4];
    UNROLL
    for (uint i = 0; i < 4; ++i)
        UNROLL
        for (uint j = 0; j < 4; ++j) sums[i][j] = 0;
    for (uint b = 0; b < blocks; ++b) {
        load_tile(codes, columns, w, q, n0, t0, b, blocks, outs, rows);
        for (uint start = 0; start < 32; start += SPAN) {
            int acc[4][4];
            UNROLL
            for (uint i = 0; i < 4; ++i)
                UNROLL
                for (uint j = 0; j < 4; ++j) acc[i][j] = 0;
            multiply_tile(acc, codes, columns, start, start + SPAN);
            float factor[4], own[4];
            UNROLL
            for (uint i = 0; i < 4; ++i) {
                const ulong n = min(n0 + n_lane + i * SIDE_N, outs - 1);
                factor[i] = wscale[n * CEIL_DIV(width, BLOCK) + (128 * b + 4 * start) / BLOCK];
            }
            UNROLL
            for (uint j = 0; j < 4; ++j) {
                const ulong t = min(t0 + t_lane + j * SIDE_T, rows - 1);
                own[j] = ABLOCK ? scale[(t * blocks + b) * 4 + start / 8] : 1.0f;
            }
            UNROLL
            for (uint i = 0; i < 4; ++i)
                UNROLL
                for (uint j = 0; j < 4; ++j) sums[i][j] = fma((float)acc[i][j] * own[j], factor[i], sums[i][j]);
        }
    }
#define VALUE(i, j, n, t) sums[i][j] * (ABLOCK ? 1.0f : scale[t])
    STORE_TILE(VALUE)
}
