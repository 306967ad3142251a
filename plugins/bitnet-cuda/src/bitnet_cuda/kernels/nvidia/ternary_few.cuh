// Ternary products for few rows on tensor cores, with the codes of few_codes.cuh. Any order of columns is valid as long
// as weights and activations agree, so each word's plane already is an A fragment. Planes keep their factors 64, 16, 4,
// 1 in separate sums and are divided at the end, which is exact.
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
__device__ inline void multiply_row(const Codes& codes, const Words* q, u32 width, int* partial) {
    multiply(codes, q, 0, 1, width, partial);
}
#else
// Returns bit g of each byte of four words of activations, one per plane, at the positions of the lower bits of a
// word's codes.
__device__ inline u32 bit_of(u32 top, u32 second, u32 third, u32 last, u32 g) {
    return (rotated_right(top, g - 6) & 0x40404040u) | (rotated_right(second, g - 4) & 0x10101010u) |
           (rotated_right(third, g - 2) & 0x04040404u) | (rotated_right(last, g) & 0x01010101u);
}

// One activation is eight columns of single bits, and words of codes are rows of bits without unpacking: half as many
// products as with bytes. Columns have weights 1, 2, 4, ..., -128, and the upper bits of codes count twice.
__device__ inline void multiply_row(const Codes& codes, const Words* q, u32 width, int* partial) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, row_words = width / 64;
    int acc[TILES][2][4];
#pragma unroll
    for (int i = 0; i < 8 * TILES; i++) acc[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 c = (i * WARPS + warp) * 4 + t;
        const Words *from = q + (c >> 1) * 8 + (c & 1u), none = {0, 0, 0, 0};
        bool used = c < row_words;
        Words top = used ? from[0] : none, second = used ? from[2] : none, third = used ? from[4] : none, last = used ? from[6] : none;
        u32 x = bit_of(top.x, second.x, third.x, last.x, g), y = bit_of(top.y, second.y, third.y, last.y, g);
        u32 z = bit_of(top.z, second.z, third.z, last.z, g), w = bit_of(top.w, second.w, third.w, last.w, g);
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            Words low = codes.of[i][j][0], high = codes.of[i][j][1];
            u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
            mma_bits(acc[j][0], first, x, y);
            mma_bits(acc[j][1], first, x << 1, y << 1);
            mma_bits(acc[j][0], second, z, w);
            mma_bits(acc[j][1], second, z << 1, w << 1);
        }
    }
    int even = 1 << (2 * t), odd = t == 3 ? -128 : 2 << (2 * t);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int dot = (acc[j][0][2 * i] + 2 * acc[j][1][2 * i]) * even + (acc[j][0][2 * i + 1] + 2 * acc[j][1][2 * i + 1]) * odd;
            dot += shuffle_xor(dot, 1);
            dot += shuffle_xor(dot, 2);
            if (t == 0) partial[16 * j + 8 * i + g] = dot;
        }
}
#endif
