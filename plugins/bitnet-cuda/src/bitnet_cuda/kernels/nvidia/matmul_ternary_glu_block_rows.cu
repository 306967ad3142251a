// matmul_ternary_glu with block scales for one to eight rows (block_rows.cuh): m[t, n] = act(g) * u, with g and u the
// outputs n and outs + n of matmul_ternary_block with w[2 outs, width / 4]; act(g) = max(g, 0)^2 (ACT 0) or g / (1 +
// exp(-g)) (ACT 1).
// A piece has eight rows of each half. JOINED: see joined_codes.cuh; NORMED: see joined_norm.cuh.
#include "prelude.cuh"
#include "block_rows.cuh"
#include "gated_codes.cuh"

KERNEL_RESIDENT(1)
matmul_ternary_glu(const Words* w, const float* wscale, const void* q, const float* scale, const int* qsum, float* __restrict__ m SQUARES_OF_Q CODES_OF_M, u32 rows,
                   u32 outs, u32 width AHEAD_OF) {
    DYNAMIC_SHARED(Words, pool);
    float *partial = (float*)pool, *scales = partial + WARPS * ROOM;
    u32 n0 = blockIdx.x * TILE_N;
    auto row_of = [=](u32 j) { return min(n0 + j / 16 * 8 + j % 8, outs - 1) + j / 8 % 2 * outs; };
    multiply_rows(partial, scales, w, wscale, q, scale, qsum, SQUARES, rows, width, row_of, AHEAD, [] {});
    for (u32 j = threadIdx.x; j < SUMS / 2; j += GROUP) {
        u32 i = j / 2 * 4 + j % 2;  // sum of the gate; that of the up projection is i + 2
        Place place(i);
        u32 n = n0 + place.row / 16 * 8 + place.row % 8;
        if (place.token >= rows || n >= outs) continue;
        float value = gated(sum_of_warps(partial, i), sum_of_warps(partial, i + 2));
        m[(size_t)place.token * outs + n] = value;
#if JOINED
        scales[place.token * MADE + n - n0] = value;  // all threads have read the scales
#endif
    }
#if JOINED
    __syncthreads();
    store_codes({m_q, m_scale, m_qsum}, scales, rows, n0, outs);
#endif
}
