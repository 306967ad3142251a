// Ternary products for few rows on tensor cores, with the codes of few_codes.cuh. Any order of columns is as good as another as
// long as weights and activations agree, so each word's plane is an A fragment as it stands. Planes keep their factors 64, 16,
// 4, 1 in sums of their own, divided out at the end, which is exact.
#include "tensor.cuh"
#include "few_codes.cuh"

// partial[token][16 * TILES] of this warp: sums of code * q over its columns, for tokens < rows <= TILE_T (1 or 8).
// Token m's activations are q + m * pitch, in 16-byte words. With TILE_T 1 all columns of the tile are that token.
__device__ inline void multiply(const Codes& codes, const Words* q, u32 pitch, u32 rows, u32 width, int* partial) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, row_words = width / 64;
    u32 token = TILE_T == 1 ? 0 : g;
    int acc[TILES][4][4];
#pragma unroll
    for (int i = 0; i < 16 * TILES; i++) acc[i / 16][i / 4 % 4][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 c = (i * WARPS + warp) * 4 + t;
        bool used = token < rows && c < row_words;
        const Words* activations = q + (size_t)token * pitch + (c >> 1) * 8 + (c & 1u);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            Words b = used ? activations[2 * s] : Words{0, 0, 0, 0};
            const u32 mask = 0x03030303u << (6 - 2 * s);
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                Words low = codes.of[i][j][0], high = codes.of[i][j][1];
                u32 first[4] = {low.x & mask, high.x & mask, low.y & mask, high.y & mask};
                u32 second[4] = {low.z & mask, high.z & mask, low.w & mask, high.w & mask};
                mma(acc[j][s], first, b.x, b.y);
                mma(acc[j][s], second, b.z, b.w);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 column = 2 * t + i % 2;
            int dot = (acc[j][0][i] >> 6) + (acc[j][1][i] >> 4) + (acc[j][2][i] >> 2) + acc[j][3][i];
            if (column < rows && column < TILE_T) partial[column * 16 * TILES + 16 * j + 8 * (i / 2) + g] = dot;
        }
}

// partial[16 * TILES] of this warp, for one row of activations in shared memory.
__device__ inline void multiply_row(const Codes& codes, const Words* q, u32 width, int* partial) {
    multiply(codes, q, 0, 1, width, partial);
}
