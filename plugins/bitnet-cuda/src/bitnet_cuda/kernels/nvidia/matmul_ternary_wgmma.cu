// matmul_ternary on Hopper's warpgroup tensor cores (compute capability 9.0), for prompts: exact integers.
// As in matmul_ternary_mma.cu, I2_S blocks are the A fragments: each lane unpacks its words plane by plane into registers.
// Activations are read by the tensor cores from shared memory, where a column block of 128 bytes a token lies in the
// 128-byte swizzle that they want. A thread block makes TILE_N weight rows x TILE_T tokens; each of its warpgroups has
// 64 * M_TILES of the rows. Two thread blocks of an SM take turns: one unpacks while the other multiplies.
#include "prelude.cuh"
#include "tensor.cuh"
#define CODE "u8"
#include "warpgroup.cuh"

#define M_TILES (TILE_N / (GROUP / 128) / 64)
#define WEIGHTS (TILE_T * 8)
#define TOKENS 0
#include "ternary_tile.cuh"
#include "store_tile.cuh"

extern "C" __global__ void __launch_bounds__(GROUP, RESIDENT)
    matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                   float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    DYNAMIC_SHARED(Words, pool);
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, x = g / 4;
    u32 n_warp = warp / 4 * 64 * M_TILES + warp % 4 * 16, blocks = width / 128;
    Tile tile = {w, q, blockIdx.x * TILE_N, outs, blockIdx.y * TILE_T, rows, blocks};
    int acc[M_TILES][TILE_T / 2];
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int i = 0; i < TILE_T / 2; i++) acc[m][i] = 0;
    tile.start(stages);
    u32 stage = 0, next = STAGES - 1;
    for (u32 b = 0; b < blocks; b++) {
        copy_wait<STAGES - 2>();
        show_to_tensor_cores();
        __syncthreads();
        const Words* tokens = stages + stage * STAGE;
        const u32* codes = (const u32*)(tokens + WEIGHTS) + (n_warp + g) * 8 + t;
        u32 a[M_TILES][4][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 packed = codes[512 * m + i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
#pragma unroll
                for (int p = 0; p < 4; p++) a[m][p][i] = (packed >> (6 - 2 * p)) & 0x03030303u;
            }
        warpgroup_arrive();
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
            for (int m = 0; m < M_TILES; m++) warpgroup_mma(acc[m], a[m][p], tokens, p, true);
        if (b + STAGES - 1 < blocks) tile.load(stages + next * STAGE, b + STAGES - 1);
        copy_group();
        warpgroup_wait();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
    store_tile<M_TILES, TILE_T / 8, 64>(
        y + y_first, y_stride, tile.n_first + n_warp + g, outs, tile.t_first + 2 * t, rows,
        [&](int m, int i, int j, u32 n, u32 token) {
            return (float)(acc[m][4 * i + j] - qsum[token]) * scale[token] * wscale[n];
        });
}
