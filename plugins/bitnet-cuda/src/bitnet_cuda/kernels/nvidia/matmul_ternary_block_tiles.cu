// matmul_ternary_block for 9 to 64 rows with the bits of matmul_ternary_block_rows.cu (block_tiles.cuh): y[t, n] (+)=
// sum_a wscale[n, 32 a / BLOCK] * scale[t, a] * (sum over the 32 columns of a of (code[n,k] - 1) q[t,k]).
// A block computes TILE_N = 16 PIECES outputs of TILE_T rows. JOINED and NORMED: see joined_norm.cuh.
#include "prelude.cuh"
#include "block_tiles.cuh"
#if JOINED
#define NORM_OF_Y , const float *gamma, u32 *y_q, float *y_largest, int *y_qsum, float *y_squares
#else
#define NORM_OF_Y
#endif
#define EACH ((ROUND_SUMS + GROUP - 1) / GROUP)  // sums of a thread in a round
#define MADE_PITCH (TILE_N + 4)                  // floats between the outputs of rows, against bank conflicts

KERNEL_RESIDENT(1)
matmul_ternary_block(const Words* w, const float* wscale, const void* q, const float* scale, const int* qsum,
                     float* __restrict__ y SQUARES_OF_Q NORM_OF_Y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    DYNAMIC_SHARED(Words, pool);
    const Places place(pool);
    const Rows own(rows);
    u32 n0 = blockIdx.x * TILE_N;
    float old[EACH], all[EACH];
    // The place in y of this thread's sum j of a round, null if it has none.
    auto at = [=](u32 j, u32 round) -> float* {
        u32 i = j * GROUP + threadIdx.x;
        TilePlace of(i, round);
        bool written = i < ROUND_SUMS && of.token < own.count && n0 + of.row < outs;
        return written ? y + (size_t)(own.first + of.token) * y_stride + y_first + n0 + of.row : nullptr;
    };
    auto ready = [&](u32 round) {
#pragma unroll
        for (u32 j = 0; j < EACH; j++) old[j] = ADD && at(j, round) ? *at(j, round) : 0.0f;
    };
    auto finish = [&](u32 round, u32 section) {
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            float* to = at(j, round);
            if (!to) continue;
            float value = sum_of_warps(place.partial, j * GROUP + threadIdx.x);
            if (SECTIONS > 1) value = all[j] = (section ? all[j] : 0.0f) + value;
            if (section < SECTIONS - 1) continue;
            if (ADD) value = old[j] + value;
            *to = value;
#if JOINED
            TilePlace of(j * GROUP + threadIdx.x, round);
            place.made[of.token * MADE_PITCH + of.row] = value;
#endif
        }
    };
    multiply_tiles(place, w, wscale, q, scale, qsum, SQUARES, own, width, [=](u32 j) { return min(n0 + j, outs - 1); }, ready, finish);
#if JOINED
    __syncthreads();
    NormedCodes codes = {own.part(y_q, outs / 4), own.part(y_largest, outs / 32), own.part(y_qsum, outs / 32), own.part(y_squares, outs / 32)};
    codes.store_all<TILE_N>(place.made, own.count, n0, outs, [=](u32 k) { return *(const Floats*)(gamma + min(n0 + k, outs - 4)); });
#endif
}
