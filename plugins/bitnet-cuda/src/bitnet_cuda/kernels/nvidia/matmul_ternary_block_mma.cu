// matmul_ternary_block on tensor cores (compute capability 8.0 and later): y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] *
// scale[t, a] * (sum over the 32 columns of a of (code[n,k] - 1) q[t,k]), with mma.sync m16n8k32 s8.s8.
// The 32 columns of a product are one plane of an I2_S block, which is one activation block. Its exact integer sums
// start from MAGIC, the bits of 1.5 * 2^23, so that they need no conversion to f32; they are scaled and added up in
// f32.
// Fragments and the tile are those of matmul_ternary_mma.cu and ternary_tile.cuh; a stage also has the activations'
// scales, those of all tokens for each plane. Weight scales are loaded a column block ahead. WARPS_N x WARPS_T warps
// share the tile.
#include "prelude.cuh"
#include "tensor.cuh"
#include "signs.cuh"

#define M_TILES (TILE_N / WARPS_N / 16)
#define T_TILES (TILE_T / WARPS_T / 8)
#define WEIGHTS 0
#define TOKENS (TILE_N * 2)
#define FACTORS (TOKENS + TILE_T * 8)
#define EXTRA TILE_T
#include "ternary_tile.cuh"
#include "block_scales.cuh"
#include "store_tile.cuh"

#define MAGIC 0x4b400000

extern "C" __global__ void __launch_bounds__(GROUP, RESIDENT)
    matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* __restrict__ y,
                         u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    DYNAMIC_SHARED(Words, pool);
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, x = g / 4, blocks = width / 128;
    u32 n_warp = warp % WARPS_N * (TILE_N / WARPS_N), t_warp = warp / WARPS_N * (TILE_T / WARPS_T);
    Tile tile = {w, q, blockIdx.x * TILE_N, outs, blockIdx.y * TILE_T, rows, blocks};
    Scaled scaled = {tile, wscale, scale, tile.n_first + n_warp + g};
    float acc[M_TILES][T_TILES][4], weights[M_TILES][2][HALVES], coming[M_TILES][2][HALVES];
#pragma unroll
    for (int i = 0; i < M_TILES * T_TILES * 4; i++) acc[i / (4 * T_TILES)][i / 4 % T_TILES][i % 4] = 0.0f;
    scaled.load_weights(coming, 0);
    tile.start(pool, [&](Words* stage, u32 block) { scaled.load_factors(stage, block); });
    u32 stage = 0, next = STAGES - 1;
    for (u32 b = 0; b < blocks; b++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (b + STAGES - 1 < blocks) {
            tile.load(pool + next * STAGE, b + STAGES - 1);
            scaled.load_factors(pool + next * STAGE, b + STAGES - 1);
        }
        copy_group();
#pragma unroll
        for (int i = 0; i < M_TILES * 2 * HALVES; i++)
            weights[i / (2 * HALVES)][i / HALVES % 2][i % HALVES] = coming[i / (2 * HALVES)][i / HALVES % 2][i % HALVES];
        scaled.load_weights(coming, min(b + 1, blocks - 1));
        const u32* codes = (const u32*)(pool + stage * STAGE + WEIGHTS) + (n_warp + g) * 8 + t;
        const Words* tokens = pool + stage * STAGE + TOKENS + (t_warp + lane / 16 * 8 + lane % 8) * 8;
        const Factors* factors = (const Factors*)(pool + stage * STAGE + FACTORS) + t_warp / 2 + t;
        u32 packed[M_TILES][4];
        float part[M_TILES][T_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) packed[m][i] = codes[128 * m + i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            u32 q_words[T_TILES + 1][2];
            Factors of_token[T_TILES];
#pragma unroll
            for (int i = 0; i < T_TILES; i++) {
                if (i % 2 == 0) load_matrices(q_words[i], tokens + i * 64 + ((2 * s + lane / 8 % 2) ^ lane % 8));
                of_token[i] = ABLOCK ? factors[s * (TILE_T / 2) + 4 * i] : Factors{1.0f, 1.0f};
            }
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                u32 a[4];
#pragma unroll
                for (int i = 0; i < 4; i++) a[i] = signs(packed[m][i], s);
#pragma unroll
                for (int i = 0; i < T_TILES; i++) {
                    int sums[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
                    mma_signed(sums, a, q_words[i][0], q_words[i][1]);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float exact = __uint_as_float((u32)sums[j]) - __uint_as_float(MAGIC);
                        float value = exact * (j % 2 ? of_token[i].odd : of_token[i].even);
                        float& sum = part[m][i][j];
                        sum = s % (4 / HALVES) == 0 ? value : sum + value;
                        if ((s + 1) % (4 / HALVES) == 0) acc[m][i][j] += weights[m][j / 2][s / (4 / HALVES)] * sum;
                    }
                }
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
    store_tile<M_TILES, T_TILES, 16>(
        y + y_first, y_stride, scaled.n_first, outs, tile.t_first + t_warp + 2 * t, rows,
        [&](int m, int i, int j, u32, u32 token) { return acc[m][i][j] * (ABLOCK ? SIGN : SIGN * scale[token]); });
}
