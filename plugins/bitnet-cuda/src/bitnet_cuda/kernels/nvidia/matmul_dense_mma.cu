// matmul_dense on tensor cores (compute capability 8.0 and later; f16 tables, width a multiple of 64): y[l, y_first +
// n] = sum_k x[l,k] w[n,k].
// x is f32: each row is scaled by a power of two so that its largest value lies in [1, 2), then split into two f16 (22
// bits), multiplied in sequence. Tensor cores sum products of 64 columns; these sums are added in f32.
// A thread block computes TILE_N rows of w x TILE_T rows of x, SUB_N rows of w by 64 columns at a time; STAGES such
// pieces of w and x are in flight from global to shared memory, where 16-byte words are swizzled by row.
#include "prelude.cuh"
#include "tensor.cuh"
#include "halves.cuh"

#define M_TILES (SUB_N / WARPS_N / 16)
#define T_TILES (TILE_T / WARPS_T / 8)
#define STAGE (SUB_N * 8 + TILE_T * 16)  // 16-byte words of one piece: w, then x

struct alignas(8) Pair {
    float a, b;
};
struct alignas(16) Bits {
    u32 v[4];
};

struct Pieces {
    const Words *x, *w;
    u32 n_first, outs, t_first, rows, words;  // words of eight columns in a row of w

    __device__ void load_table(Words* stage, u32 sub, u32 chunk) const {
        for (u32 i = threadIdx.x; i < SUB_N * 8; i += GROUP) {
            u32 row = i / 8, n = min(n_first + sub * SUB_N + row, outs - 1);
            copy_async_ahead(stage + row * 8 + (i % 8 ^ row % 8), w + (size_t)n * words + chunk * 8 + i % 8);
        }
    }
    __device__ void load_rows(Words* stage, u32 chunk) const {
        for (u32 i = threadIdx.x; i < TILE_T * 16; i += GROUP) {
            u32 row = i / 16, l = min(t_first + row, rows - 1);
            copy_async(stage + SUB_N * 8 + row * 16 + (i % 16 ^ 2 * (row % 8)),
                       x + ((size_t)l * words + chunk * 8) * 2 + i % 16);
        }
    }
};

KERNEL matmul_dense(const Words* x, const Words* w, float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ u32 exponents[TILE_T];  // biased, of the factor of each row of x
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    u32 n_warp = warp % WARPS_N * (SUB_N / WARPS_N), t_warp = warp / WARPS_N * (TILE_T / WARPS_T);
    u32 chunks = width / 64;
    Pieces pieces = {x, w, blockIdx.x * TILE_N, outs, blockIdx.y * TILE_T, rows, width / 8};
    u32 subs = (min((u32)TILE_N, outs - pieces.n_first) + SUB_N - 1) / SUB_N, count = subs * chunks;
    let_next_start();
    for (u32 i = 0; i < min((u32)STAGES - 1, count); i++) pieces.load_table(pool + i * STAGE, i / chunks, i % chunks);
    wait_for_previous();
    for (u32 i = 0; i < STAGES - 1; i++) {
        if (i < count) pieces.load_rows(pool + i * STAGE, i % chunks);
        copy_group();
    }
    for (u32 token = warp; token < TILE_T; token += GROUP / 32) {
        const Bits* row = (const Bits*)x + (size_t)min(pieces.t_first + token, rows - 1) * (width / 4);
        u32 largest = 0;
        for (u32 k = lane; k < width / 4; k += 32)
            for (int i = 0; i < 4; i++) largest = max(largest, row[k].v[i] & 0x7fffffffu);
        for (int d = 16; d > 0; d >>= 1) largest = max(largest, shuffle_xor(largest, d));
        u32 exponent = largest >> 23;
        if (lane == 0) exponents[token] = exponent == 255 ? 127 : max(254 - max(exponent, 1u), 1u);
    }
    __syncthreads();
    float factors[T_TILES];
#pragma unroll
    for (int i = 0; i < T_TILES; i++) factors[i] = __uint_as_float(exponents[t_warp + 8 * i + g] << 23);
    float acc[M_TILES][T_TILES][4];
    u32 stage = 0, next = STAGES - 1, sub = 0, chunk = 0, next_sub = (STAGES - 1) / chunks;
    u32 next_chunk = (STAGES - 1) % chunks;
    for (u32 it = 0; it < count; it++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (it + STAGES - 1 < count) {
            pieces.load_table(pool + next * STAGE, next_sub, next_chunk);
            pieces.load_rows(pool + next * STAGE, next_chunk);
        }
        copy_group();
        const Words* weights = pool + stage * STAGE;
        const Pair* tokens = (const Pair*)(weights + SUB_N * 8);
        float part[M_TILES][T_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < T_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) part[m][i][j] = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 high[T_TILES][2], low[T_TILES][2];
#pragma unroll
            for (int i = 0; i < T_TILES; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 word = (4 * k + 2 * half + t / 2) ^ 2 * g;
                    Pair pair = tokens[((t_warp + 8 * i + g) * 16 + word) * 2 + t % 2];
                    split_halves(pair.a * factors[i], pair.b * factors[i], high[i][half], low[i][half]);
                }
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                u32 a[4], row = n_warp + 16 * m + lane % 16;
                load_matrices(a, weights + row * 8 + ((2 * k + lane / 16) ^ row % 8));
#pragma unroll
                for (int i = 0; i < T_TILES; i++) {
                    mma_half(part[m][i], a, low[i][0], low[i][1]);
                    mma_half(part[m][i], a, high[i][0], high[i][1]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < T_TILES; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[m][i][j] = chunk == 0 ? part[m][i][j] : acc[m][i][j] + part[m][i][j];
        if (chunk == chunks - 1)
#pragma unroll
            for (int i = 0; i < T_TILES; i++)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    u32 token = t_warp + 8 * i + 2 * t + odd, l = pieces.t_first + token;
                    if (l >= rows) continue;
                    float inverse = __uint_as_float((254 - exponents[token]) << 23);
#pragma unroll
                    for (int m = 0; m < M_TILES; m++)
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            u32 n = pieces.n_first + sub * SUB_N + n_warp + 16 * m + 8 * half + g;
                            if (n < outs) y[(size_t)l * y_stride + y_first + n] = acc[m][i][2 * half + odd] * inverse;
                        }
                }
        if (++chunk == chunks) chunk = 0, sub++;
        if (++next_chunk == chunks) next_chunk = 0, next_sub++;
        if (++stage == STAGES) stage = 0;
        if (++next == STAGES) next = 0;
    }
}
