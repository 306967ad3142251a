// matmul_ternary_glu with block scales for 9 to 64 rows with the bits of matmul_ternary_glu_block_rows.cu
// (block_tiles.cuh): m[t, n] = act(g) * u, with g and u the outputs n and outs + n of matmul_ternary_block with w[2
// outs, width / 4]; act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1).
// A piece has eight rows of each half. JOINED: see joined_codes.cuh; NORMED: see joined_norm.cuh.
#include "prelude.cuh"
#include "block_tiles.cuh"
#include "gated_codes.cuh"

KERNEL_RESIDENT(1)
matmul_ternary_glu(const Words* w, const float* wscale, const void* q, const float* scale, const int* qsum, float* __restrict__ m SQUARES_OF_Q CODES_OF_M, u32 rows,
                   u32 outs, u32 width) {
    DYNAMIC_SHARED(Words, pool);
    const Places place(pool);
    const Rows own(rows);
    u32 n0 = blockIdx.x * TILE_N;
    auto row_of = [=](u32 j) { return min(n0 + j / 16 * 8 + j % 8, outs - 1) + j / 8 % 2 * outs; };
    auto finish = [&](u32 round, u32) {
        for (u32 j = threadIdx.x; j < ROUND_SUMS / 2; j += GROUP) {
            u32 i = j / 2 * 4 + j % 2;  // sum of the gate; that of the up projection is i + 2
            TilePlace of(i, round);
            u32 row = of.row / 16 * 8 + of.row % 8;
            if (of.token >= own.count || n0 + row >= outs) continue;
            float value = gated(sum_of_warps(place.partial, i), sum_of_warps(place.partial, i + 2));
            m[(size_t)(own.first + of.token) * outs + n0 + row] = value;
#if JOINED
            place.made[of.token * MADE + row] = value;
#endif
        }
    };
    multiply_tiles(place, w, wscale, q, scale, qsum, SQUARES, own, width, row_of, [](u32) {}, finish);
#if JOINED
    __syncthreads();
    Quantized codes = {own.part(m_q, outs / 4), own.part(m_scale, outs / 32), own.part(m_qsum, outs / 32)};
    store_codes(codes, place.made, own.count, n0, outs);
#endif
}
