// x[t,k] = (code - 1) * wscale[row, k / BLOCK], row = token[t] - first, for first <= token[t] < first + count; other
// rows are unchanged. Codes are in I2_S blocks of 128 columns of w[count, width/4]. A block computes TILE_N columns.
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
