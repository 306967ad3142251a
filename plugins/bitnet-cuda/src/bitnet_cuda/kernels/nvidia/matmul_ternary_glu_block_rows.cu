// matmul_ternary_glu with block scales for one to eight rows: see block_rows.cuh. m[t, n] = act(g) * u, g and u being matmul_ternary_block's of rows n
// and outs + n of w[2 outs, width / 4]; act = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1). A piece has eight rows of either half.
#include "prelude.cuh"
#include "block_rows.cuh"
#include "gated.cuh"

KERNEL_RESIDENT(1)
matmul_ternary_glu(const Words* w, const float* wscale, const void* q, const float* scale, const int* qsum, float* __restrict__ m, u32 rows, u32 outs,
                   u32 width) {
    DYNAMIC_SHARED(Words, pool);
    float *partial = (float*)pool, *scales = partial + ROOM;
    u32 n0 = blockIdx.x * TILE_N;
    auto row_of = [=](u32 j) { return min(n0 + j / 16 * 8 + j % 8, outs - 1) + j / 8 % 2 * outs; };
    multiply_rows(partial, scales, w, wscale, q, scale, qsum, rows, width, row_of, [] {});
    for (u32 j = threadIdx.x; j < SUMS / 2; j += GROUP) {
        u32 i = j / 2 * 4 + j % 2;  // of the gate; the same of the up projection is two further
        Place place(i);
        u32 n = n0 + place.row / 16 * 8 + place.row % 8;
        if (place.token < rows && n < outs) m[(size_t)place.token * outs + n] = gated(sum_of_warps(partial, i), sum_of_warps(partial, i + 2));
    }
}
