// Ternary products of many rows with matrix cores. A block of WAVES_N * WAVES_T waves computes TILE_N x TILE_T outputs,
// each wave 16 N_TILES weight rows by 16 T_TILES rows of activations. Weights are unpacked to signed bytes (signs.cuh).
// BLOCK 0: one scale per weight row and per row of activations; else each plane of a block, 32 columns, has one
// product, which is scaled separately.
#include "column_blocks.cuh"
#include "matrix.cuh"
#include "signs.cuh"

#define N_TILES (TILE_N / WAVES_N / 16)
#define T_TILES (TILE_T / WAVES_T / 16)
#define HALVES (BLOCK == 64 ? 2 : 1)  // weight scales of a row for 128 columns

#if BLOCK
typedef float Total __attribute__((ext_vector_type(SUMS)));

// Scales of a block of columns in shared memory; those of activations by plane.
struct Scales {
    float of_rows[4][TILE_T], of_weights[TILE_N][HALVES];
};

__device__ inline void load_scales(Scales& scales, const ColumnBlocks& c, const float* scale, const float* wscale, u32 block) {
    u32 row_scales = (c.blocks * 128 + BLOCK - 1) / BLOCK;
    for (u32 i = threadIdx.x; ABLOCK && i < TILE_T * 4; i += GROUP)
        scales.of_rows[i % 4][i / 4] = scale[((size_t)min(c.t_first + i / 4, c.rows - 1) * c.blocks + block) * 4 + i % 4];
    for (u32 i = threadIdx.x; i < TILE_N * HALVES; i += GROUP)
        scales.of_weights[i / HALVES][i % HALVES] =
            wscale[(size_t)min(c.n_first + i / HALVES, c.outs - 1) * row_scales + (block * 128 + i % HALVES * 64) / BLOCK];
}
#else
typedef Sums Total;
#endif

__device__ inline void matrix_tile(const Words* w, const float* wscale, const Words* q, const float* scale, float* y, u32 rows,
                                   u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ Words codes[TILE_N * 2], tokens[TILE_T * PITCH];
#if BLOCK
    __shared__ Scales scales;
#endif
    u32 lane = threadIdx.x % WAVE_SIZE, wave = threadIdx.x / WAVE_SIZE, blocks = width / 128;
    u32 n0 = wave % WAVES_N * 16 * N_TILES, t0 = wave / WAVES_N * 16 * T_TILES;
    ColumnBlocks columns = {w, q, blockIdx.x * TILE_N, outs, blockIdx.y * TILE_T, rows, blocks};
    columns.load(0);
    Total total[N_TILES][T_TILES];
#pragma unroll
    for (int i = 0; i < N_TILES * T_TILES; i++) total[i / T_TILES][i % T_TILES] = Total(0);
    const u32* my_codes = (const u32*)(codes + (n0 + lane % 16) * 2) + word_of(lane);
    const u32* my_tokens = (const u32*)(tokens + (t0 + lane % 16) * PITCH) + word_of(lane);
    for (u32 b = 0; b < blocks; b++) {
        __syncthreads();
        columns.store(codes, tokens);
#if BLOCK
        load_scales(scales, columns, scale, wscale, b);
#endif
        __syncthreads();
        if (b + 1 < blocks) columns.load(b + 1);
#pragma unroll 1
        for (int s = 0; s < 4; s++) {  // not unrolled: one copy of the body is long enough
            u32 in[T_TILES][PART];
#pragma unroll
            for (int i = 0; i < T_TILES * PART; i++)
                in[i / PART][i % PART] = my_tokens[i / PART * 16 * 4 * PITCH + 8 * s + i % PART];
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                u32 weights[PART];
#pragma unroll
                for (int i = 0; i < PART; i++) weights[i] = signs(my_codes[n * 16 * 8 + i], s);
#pragma unroll
                for (int t = 0; t < T_TILES; t++) {
#if BLOCK
                    float weight = scales.of_weights[n0 + 16 * n + lane % 16][s * HALVES / 4];
                    Sums sums = product(in[t], weights, Sums(0));
#pragma unroll
                    for (int i = 0; i < SUMS; i++) {
                        float factor = ABLOCK ? weight * scales.of_rows[s][t0 + 16 * t + row_of(lane, i)] : weight;
                        total[n][t][i] += factor * (float)sums[i];
                    }
#else
                    total[n][t] = product(in[t], weights, total[n][t]);
#endif
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        u32 out = columns.n_first + n0 + 16 * n + lane % 16;
        if (out >= outs) continue;
        float weight = BLOCK ? 1.0f : wscale[out];
#pragma unroll
        for (int i = 0; i < T_TILES * SUMS; i++) {
            u32 token = columns.t_first + t0 + 16 * (i / SUMS) + row_of(lane, i % SUMS);
            if (token >= rows) continue;
            float value = (float)-total[n][i / SUMS][i % SUMS] * -SIGN * (ABLOCK ? 1.0f : scale[token]) * weight;
            size_t at = (size_t)token * y_stride + y_first + out;
            y[at] = ADD ? y[at] + value : value;
        }
    }
}
