// matmul_ternary_block for up to eight rows (block_few.cuh): y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a] *
// (sum over the 32 columns of a of (code[n,k] - 1) q[t,k]). A block computes TILE_N outputs of all rows.
#include "prelude.cuh"

#define ROWS TILE_N
#include "block_few.cuh"

#define HALVES (BLOCK == 64 ? 2 : 1)  // weight scales of a row for 128 columns

struct alignas(8) Pair {
    u32 a, b;
};

KERNEL matmul_ternary_block(const Words* w, const float* wscale, const Pair* q, const float* scale, const int* qsum,
                            float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ float partial[WARPS][8][16 * TILES];
    u32 t0 = blockIdx.y * TILE_T, n0 = blockIdx.x * TILE_N, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    auto row_of = [=](u32 j) { return min(n0 + j, outs - 1); };
    let_next_start();
    Codes codes;
    load_codes(codes, w, width, row_of);
    float weights[STEPS][2][HALVES][TILES][2];
#pragma unroll
    for (int i = 0; i < STEPS * 2 * HALVES; i++)
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++) {
            u32 k = (unit_block(i / (2 * HALVES)) + i / HALVES % 2) * 128 + i % HALVES * 64;
            weights[i / (2 * HALVES)][i / HALVES % 2][i % HALVES][j / 2][j % 2] =
                8 * j < ROWS ? weight_scale(wscale, row_of(8 * j + g), k, width) : 0.0f;
        }
    wait_for_previous();
    rows = min(rows - t0, (u32)TILE_T);
    q += (size_t)t0 * (width / 8), scale += (size_t)t0 * (ABLOCK ? width / 32 : 1), y += (size_t)t0 * y_stride;
    float acc[TILES][4];
#pragma unroll
    for (int j = 0; j < 4 * TILES; j++) acc[j / 4][j % 4] = 0.0f;
    const Floats* factors = (const Floats*)scale;  // of a block's four planes
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++) codes.of[i][j / 2][j % 2] = regrouped(codes.of[i][j / 2][j % 2]);
#pragma unroll
        for (int second = 0; second < 2; second++) {
            u32 block = unit_block(i) + second, blocks = width / 128;
            if (block >= blocks) break;
            float of_token[2][4];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                u32 token = min(2 * t + e, rows - 1);
                Floats four = ABLOCK ? factors[(size_t)token * blocks + block] : Floats{1.0f, 1.0f, 1.0f, 1.0f};
                of_token[e][0] = four.x, of_token[e][1] = four.y, of_token[e][2] = four.z, of_token[e][3] = four.w;
            }
#pragma unroll
            for (int s = 0; s < 4; s++) {
                Pair b = g < rows ? q[((size_t)g * blocks + block) * 16 + 4 * s + t % 2 * 2 + t / 2] : Pair{0, 0};
#pragma unroll
                for (int j = 0; j < TILES; j++) {
                    u32 a[4];
                    int c[4] = {0, 0, 0, 0};
                    fragment(a, codes.of[i][j][0], codes.of[i][j][1], s, second);
                    mma_signed(c, a, b.a, b.b);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        acc[j][e] += weights[i][second][s / (4 / HALVES)][j][e / 2] * of_token[e % 2][s] * (float)c[e];
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) partial[warp][2 * t + e % 2][16 * j + 8 * (e / 2) + g] = acc[j][e];
    __syncthreads();
    for (u32 at = threadIdx.x; at < rows * TILE_N; at += GROUP) {
        u32 token = at / TILE_N, n = n0 + at % TILE_N;
        if (n >= outs) continue;
        float value = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) value += partial[i][token][at % TILE_N];
        if (!ABLOCK) value *= scale[token];
        size_t to = (size_t)token * y_stride + y_first + n;
        y[to] = ADD ? y[to] + value : value;
    }
}
