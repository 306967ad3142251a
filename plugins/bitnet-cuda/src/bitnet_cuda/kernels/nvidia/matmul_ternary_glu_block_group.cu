// matmul_ternary_glu with block scales for 2 to 64 rows (block_group.cuh): m[t, n] = act(g) * u, with g and u the
// outputs n and outs + n of matmul_ternary_block with w[2 outs, width / 4]; act(g) = max(g, 0)^2 (ACT 0) or g / (1 +
// exp(-g)) (ACT 1); q[rows, width]. ABLOCK is not 0, BLOCK is not 64.
// A block computes TILE_N outputs of all rows from 2 TILE_N weight rows. JOINED: see joined_codes.cuh.
#include "prelude.cuh"
#define GATED 1
#include "block_group.cuh"
#include "gated_codes.cuh"

KERNEL_RESIDENT(1)
matmul_ternary_glu(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* __restrict__ m CODES_OF_M, u32 rows,
                   u32 outs, u32 width, const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens,
                   const __grid_constant__ TensorMap scales) {
    DYNAMIC_SHARED(Words, pool);
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 8 + lane / 4, n = blockIdx.x * TILE_N + row;
    float acc[SUMS];
    group_sums(acc, stages, row, 0, wscale, outs, width, weights, tokens, scales, [] {});
#if JOINED
    float* made = (float*)stages;
    __syncthreads();  // all threads have read the stages
#endif
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        u32 token = i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (token >= rows || n >= outs) continue;
        float value = gated(acc[i / 2 * 4 + i % 2], acc[i / 2 * 4 + 2 + i % 2]);
        m[(size_t)token * outs + n] = value;
#if JOINED
        made[token * MADE + row] = value;
#endif
    }
#if JOINED
    __syncthreads();
    store_codes({m_q, m_scale, m_qsum}, made, rows, blockIdx.x * TILE_N, outs);
#endif
}
