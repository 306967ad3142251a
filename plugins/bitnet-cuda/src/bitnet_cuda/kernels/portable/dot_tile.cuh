// Ternary products of many rows with dot products of four bytes. A block of 256 threads computes TILE_N x TILE_T
// outputs, each thread TILE_N / 16 weight rows by TILE_T / 16 rows of activations. Weights are unpacked to signed bytes
// (signs.cuh). BLOCK 0: one scale per weight row and per row of activations.
#include "column_blocks.cuh"
#include "signs.cuh"

#define PER_N (TILE_N / 16)
#define PER_T (TILE_T / 16)

// Adds the products of 16 columns of plane s.
__device__ inline void multiply_half(int (&sum)[PER_N][PER_T], const Words* codes, const Words* tokens, int s) {
    Words in[PER_T];
#pragma unroll
    for (int j = 0; j < PER_T; j++) in[j] = tokens[16 * j * PITCH];
#pragma unroll
    for (int i = 0; i < PER_N; i++) {
        Words c = codes[2 * i];
        u32 x = signs(c.x, s), y = signs(c.y, s), z = signs(c.z, s), w = signs(c.w, s);
#pragma unroll
        for (int j = 0; j < PER_T; j++)
            sum[i][j] = dot4(x, in[j].x, dot4(y, in[j].y, dot4(z, in[j].z, dot4(w, in[j].w, sum[i][j]))));
    }
}

__device__ inline void dot_tile(const Words* w, const float* wscale, const Words* q, const float* scale, float* y, u32 rows,
                                u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ Words codes[TILE_N * 2], tokens[TILE_T * PITCH];
    let_next_start();
    wait_for_previous();
    u32 x = threadIdx.x % 16, n0 = threadIdx.x / 16 * PER_N, blocks = width / 128;
    u32 n_first = blockIdx.x * TILE_N, t_first = blockIdx.y * TILE_T;
    ColumnBlocks columns = {w, q, n_first, outs, t_first, rows, blocks};
    columns.load(0);
    int sum[PER_N][PER_T];
    float scaled[PER_N][PER_T];
#pragma unroll
    for (int i = 0; i < PER_N * PER_T; i++) sum[i / PER_T][i % PER_T] = 0, scaled[i / PER_T][i % PER_T] = 0.0f;
    for (u32 b = 0; b < blocks; b++) {
        __syncthreads();
        columns.store(codes, tokens);
        __syncthreads();
        if (b + 1 < blocks) columns.load(b + 1);
#pragma unroll 1
        for (int s = 0; s < 4; s++) {  // not unrolled: one copy of the body is long enough
            multiply_half(sum, codes + n0 * 2, tokens + x * PITCH + 2 * s, s);
            multiply_half(sum, codes + n0 * 2 + 1, tokens + x * PITCH + 2 * s + 1, s);
#if BLOCK
#pragma unroll
            for (int j = 0; j < PER_T; j++) {
                u32 token = min(t_first + x + 16 * j, rows - 1);
                float factor = ABLOCK ? scale[((size_t)token * blocks + b) * 4 + s] : 1.0f;
#pragma unroll
                for (int i = 0; i < PER_N; i++) {
                    u32 n = min(n_first + n0 + i, outs - 1), scales = (width + BLOCK - 1) / BLOCK;
                    scaled[i][j] += wscale[(size_t)n * scales + (128 * b + 32 * s) / BLOCK] * factor * (float)sum[i][j];
                    sum[i][j] = 0;
                }
            }
#endif
        }
    }
#pragma unroll
    for (int j = 0; j < PER_T; j++) {
        u32 token = t_first + x + 16 * j;
        if (token >= rows) continue;
#pragma unroll
        for (int i = 0; i < PER_N; i++) {
            u32 n = n_first + n0 + i;
            if (n >= outs) continue;
#if BLOCK
            float value = scaled[i][j] * SIGN * (ABLOCK ? 1.0f : scale[token]);
#else
            float value = (float)-sum[i][j] * -SIGN * scale[token] * wscale[n];
#endif
            size_t at = (size_t)token * y_stride + y_first + n;
            y[at] = ADD ? y[at] + value : value;
        }
    }
}
