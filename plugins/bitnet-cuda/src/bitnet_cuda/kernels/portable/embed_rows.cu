// x[t,:] = table[token[t] - first,:] for first <= token[t] < first + count; other rows are unchanged. A block copies
// TILE_N columns.
#include "prelude.cuh"
#include "dense.cuh"

KERNEL embed_rows(const u8* table, const Row* step, float* x, u32 rows, u32 hidden, u32 first, u32 count) {
    let_next_start();
    wait_for_previous();
    u32 row = blockIdx.y, start = blockIdx.x * TILE_N;
    int token = step[row].token;
    if (token < 0 || (u32)token < first || (u32)token - first >= count) return;
    size_t base = (size_t)((u32)token - first) * hidden;
    for (u32 k = start + threadIdx.x; k < min(start + TILE_N, hidden); k += GROUP)
        x[(size_t)row * hidden + k] = table_element(table, base + k);
}
