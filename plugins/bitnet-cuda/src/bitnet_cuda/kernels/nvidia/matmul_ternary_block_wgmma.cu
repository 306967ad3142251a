// matmul_ternary_block on Hopper's warpgroup tensor cores (compute capability 9.0), for prompts. Tiles, fragments and stages
// are those of matmul_ternary_wgmma.cu, scales those of block_scales.cuh. While the exact sums of one plane, 32 columns, are
// scaled, the tensor cores work for the other warpgroups of the multiprocessor.
#include "prelude.cuh"
#include "tensor.cuh"
#include "signs.cuh"
#define CODE "s8"
#define SPAN_T TILE_T
#include "warpgroup.cuh"

#define M_TILES 1
#define TOKENS 0
#define WEIGHTS (TILE_T * 8)
#define FACTORS (WEIGHTS + TILE_N * 2)
#define EXTRA TILE_T
#include "ternary_tile.cuh"
#include "block_scales.cuh"
#include "store_tile.cuh"

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                         float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    DYNAMIC_SHARED(Words, pool);
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n_warp = threadIdx.x / 32 * 16, x = g / 4, blocks = width / 128;
    Tile tile = {w, q, blockIdx.x * TILE_N, outs, blockIdx.y * TILE_T, rows, blocks};
    Scaled scaled = {tile, wscale, scale, tile.n_first + n_warp + g};
    int sums[TILE_T / 2];
    float acc[TILE_T / 2], weights[1][2][HALVES], coming[1][2][HALVES];
#pragma unroll
    for (int i = 0; i < TILE_T / 2; i++) acc[i] = 0.0f, sums[i] = 0;
    scaled.load_weights(coming, 0);
    tile.start(stages, [&](Words* stage, u32 block) { scaled.load_factors(stage, block); });
    u32 stage = 0, next = STAGES - 1;
    for (u32 b = 0; b < blocks; b++) {
        copy_wait<STAGES - 2>();
        show_to_tensor_cores();
        __syncthreads();
        if (b + STAGES - 1 < blocks) {
            tile.load(stages + next * STAGE, b + STAGES - 1);
            scaled.load_factors(stages + next * STAGE, b + STAGES - 1);
        }
        copy_group();
#pragma unroll
        for (int i = 0; i < 2 * HALVES; i++) weights[0][i / HALVES][i % HALVES] = coming[0][i / HALVES][i % HALVES];
        scaled.load_weights(coming, min(b + 1, blocks - 1));
        const Words* tokens = stages + stage * STAGE;
        const u32* codes = (const u32*)(tokens + WEIGHTS) + (n_warp + g) * 8 + t;
        const Factors* factors = (const Factors*)(tokens + FACTORS) + t;
        u32 packed[4];
        float part[TILE_T / 2];
#pragma unroll
        for (int i = 0; i < 4; i++) packed[i] = codes[i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const bool first = s % (4 / HALVES) == 0, last = (s + 1) % (4 / HALVES) == 0;
            u32 a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = signs(packed[i], s);
            warpgroup_arrive();
            warpgroup_mma(sums, a, tokens, s, !ABLOCK && !first);
            warpgroup_commit();
            warpgroup_wait<0>();
            if (!ABLOCK && !last) continue;
#pragma unroll
            for (int i = 0; i < TILE_T / 8; i++) {
                Factors of_token = ABLOCK ? factors[s * (TILE_T / 2) + 4 * i] : Factors{1.0f, 1.0f};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float exact = (float)sums[4 * i + j], factor = j % 2 ? of_token.odd : of_token.even;
                    part[4 * i + j] = !ABLOCK ? exact : first ? exact * factor : part[4 * i + j] + exact * factor;
                    if (last) acc[4 * i + j] += weights[0][j / 2][s / (4 / HALVES)] * part[4 * i + j];
                }
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
    store_tile<1, TILE_T / 8, 64>(
        y + y_first, y_stride, scaled.n_first, outs, tile.t_first + 2 * t, rows,
        [&](int, int i, int j, u32, u32 token) { return acc[4 * i + j] * (ABLOCK ? SIGN : SIGN * scale[token]); });
}
