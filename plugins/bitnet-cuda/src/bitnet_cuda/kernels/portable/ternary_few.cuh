// Ternary products of one row of activations with dot products of four bytes, and the codes of few_codes.cuh.
#include "few_codes.cuh"
#include "planes.cuh"

// partial[16 * TILES] of this warp: sums of code * q over its columns. q: in shared memory, STEPS * WARPS * 256
// columns.
__device__ inline void multiply_row(const Codes& codes, const Words* q, u32 width, int* partial) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int acc[2 * TILES][4];
#pragma unroll
    for (int i = 0; i < 8 * TILES; i++) acc[i / 4][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 c = (i * WARPS + warp) * 4 + t;
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++) add_planes(acc[j], codes.of[i][j / 2][j % 2], q + (c >> 1) * 8 + (c & 1u));
    }
#pragma unroll
    for (int j = 0; j < 2 * TILES; j++) {
        int dot = joined_planes(acc[j]);
        dot += shuffle_xor(dot, 1);
        dot += shuffle_xor(dot, 2);
        if (t == 0) partial[8 * j + g] = dot;
    }
}
