// x[t,k] = (code - 1) * wscale[row, k / BLOCK], row = token[t] - first, for first <= token < first + count; other rows stay.
// Codes in I2_S 128-blocks of w[count, width/4]. TILE_N columns per block.
#include "prelude.cuh"

KERNEL embed_rows_ternary(const u8* w, const float* wscale, const Row* step, float* x, u32 rows, u32 hidden, u32 width,
                          u32 first, u32 count) {
    let_next_start();
    wait_for_previous();
    u32 row = blockIdx.y, start = blockIdx.x * TILE_N;
    int token = step[row].token;
    if (token < 0 || (u32)token < first || (u32)token - first >= count) return;
    size_t n = (u32)token - first;
    u32 scales = (width + BLOCK - 1) / BLOCK;
    for (u32 k = start + threadIdx.x; k < min(start + TILE_N, hidden); k += GROUP) {
        u32 packed = w[n * (width / 4) + k / 128 * 32 + k % 32], code = (packed >> (6 - k % 128 / 32 * 2)) & 3u;
        x[(size_t)row * hidden + k] = ((float)code - 1.0f) * wscale[n * scales + k / BLOCK];
    }
}
