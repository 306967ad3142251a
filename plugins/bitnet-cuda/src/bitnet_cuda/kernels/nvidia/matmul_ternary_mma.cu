// matmul_ternary on tensor cores (compute capability 8.0 and later): y[t, n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) *
// scale[t] * wscale[n], with mma.sync m16n8k32 u8.s8, exact integers.
// I2_S blocks are already fragments: of the 32 bytes of a row's block, lane (g, t) of a warp takes words t and 4 + t of
// rows g and g + 8; plane s of those words is the A fragment for columns 32 s .. 32 s + 31 of the block.
// A thread block computes the tile of ternary_tile.cuh, shared by WARPS_N x WARPS_T warps.
#include "prelude.cuh"
#include "tensor.cuh"

#define M_TILES (TILE_N / WARPS_N / 16)
#define T_TILES (TILE_T / WARPS_T / 8)
#define WEIGHTS 0
#define TOKENS (TILE_N * 2)
#include "ternary_tile.cuh"
#include "store_tile.cuh"

KERNEL matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* __restrict__ y,
                      u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    DYNAMIC_SHARED(Words, pool);
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    u32 n_warp = warp % WARPS_N * (TILE_N / WARPS_N), t_warp = warp / WARPS_N * (TILE_T / WARPS_T);
    u32 blocks = width / 128, x = g / 4;
    Tile tile = {w, q, blockIdx.x * TILE_N, outs, blockIdx.y * TILE_T, rows, blocks};
    int acc[M_TILES][T_TILES][4];
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int i = 0; i < T_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[m][i][j] = 0;
    tile.start(pool);
    u32 stage = 0, next = STAGES - 1;
    for (u32 b = 0; b < blocks; b++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (b + STAGES - 1 < blocks) tile.load(pool + next * STAGE, b + STAGES - 1);
        copy_group();
        const u32* codes = (const u32*)(pool + stage * STAGE + WEIGHTS) + (n_warp + g) * 8 + t;
        const Words* tokens = pool + stage * STAGE + TOKENS + (t_warp + lane / 16 * 8 + lane % 8) * 8;
        u32 packed[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            packed[m][0] = codes[128 * m + 4 * x];
            packed[m][1] = codes[128 * m + 64 + 4 * x];
            packed[m][2] = codes[128 * m + 4 * (1 - x)];
            packed[m][3] = codes[128 * m + 64 + 4 * (1 - x)];
        }
#pragma unroll
        for (int s = 0; s < 4; s++) {
            u32 q_words[T_TILES + 1][2];
#pragma unroll
            for (int i = 0; i < T_TILES; i += 2)
                load_matrices(q_words[i], tokens + i * 64 + ((2 * s + lane / 8 % 2) ^ lane % 8));
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                u32 a[4];
#pragma unroll
                for (int i = 0; i < 4; i++) a[i] = (packed[m][i] >> (6 - 2 * s)) & 0x03030303u;
#pragma unroll
                for (int i = 0; i < T_TILES; i++) mma(acc[m][i], a, q_words[i][0], q_words[i][1]);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
    store_tile<M_TILES, T_TILES, 16>(
        y + y_first, y_stride, tile.n_first + n_warp + g, outs, tile.t_first + t_warp + 2 * t, rows,
        [&](int m, int i, int j, u32 n, u32 token) {
            return (float)(acc[m][i][j] - qsum[token]) * scale[token] * wscale[n];
        });
}
