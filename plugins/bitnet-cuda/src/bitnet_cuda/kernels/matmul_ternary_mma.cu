// matmul_ternary on tensor cores (compute capability 8.0 and later): mma.sync m16n8k32 u8.s8, exact integers.
// I2_S blocks are already fragments: of the 32 bytes of a row's block, lane (g, t) of a warp takes words t and 4 + t of
// rows g and g + 8; plane s of those words is the A fragment for columns 32s..32s+31 of the block. A block of four warps
// makes 64 weight rows x TILE_T tokens; activations go through shared memory, 128 columns at a time.
#include "prelude.cuh"

#define TILES (TILE_T / 8)
#define PITCH 9  // 16-byte words per token in shared memory; odd, so that the eight tokens of a fragment use all banks

#ifndef CPU_EMULATION
__device__ inline void mma(int* c, const u32* a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

KERNEL matmul_ternary(const u32* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* y,
                      u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ Words tile[TILE_T * PITCH];
    const u32* tile_words = (const u32*)tile;
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, blocks = width / 128;
    u32 n0 = blockIdx.x * 64 + threadIdx.x / 32 * 16 + g, first = blockIdx.y * TILE_T;
    const u32* low = w + (size_t)min(n0, outs - 1) * blocks * 8;
    const u32* high = w + (size_t)min(n0 + 8, outs - 1) * blocks * 8;
    int acc[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        for (int j = 0; j < 4; j++) acc[i][j] = 0;
    for (u32 b = 0; b < blocks; b++) {
        u32 packed[4] = {low[8 * b + t], high[8 * b + t], low[8 * b + 4 + t], high[8 * b + 4 + t]};
        __syncthreads();
        for (u32 i = threadIdx.x; i < TILE_T * 8; i += GROUP) {
            u32 token = first + i / 8;
            tile[i / 8 * PITCH + i % 8] = token < rows ? q[((size_t)token * blocks + b) * 8 + i % 8] : Words{0, 0, 0, 0};
        }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            u32 a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = (packed[i] >> (6 - 2 * s)) & 0x03030303u;
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const u32* token = tile_words + (8 * i + g) * PITCH * 4 + 8 * s;
                mma(acc[i], a, token[t], token[4 + t]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
        for (int j = 0; j < 4; j++) {
            u32 n = n0 + 8 * (j / 2), token = first + 8 * i + 2 * t + j % 2;
            if (n >= outs || token >= rows) continue;
            float value = (float)(acc[i][j] - qsum[token]) * scale[token] * wscale[n];
            size_t at = (size_t)token * y_stride + y_first + n;
            y[at] = ADD ? y[at] + value : value;
        }
}
