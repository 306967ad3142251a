// matmul_ternary_block for one to eight rows (block_rows.cuh): y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a]
// * (sum over the 32 columns of a of (code[n,k] - 1) q[t,k]).
// A block computes TILE_N = 16 PIECES outputs of all rows. With SPLITS > 1 it computes its columns' share of them; the
// blocks of the cluster then add up and store an equal number of sums each. JOINED and NORMED: see joined_norm.cuh.
#include "prelude.cuh"
#include "block_rows.cuh"
#if JOINED
#define NORM_OF_Y , const float *gamma, u32 *y_q, float *y_largest, int *y_qsum, float *y_squares
#else
#define NORM_OF_Y
#endif
#define OWN (SUMS / SPLITS)  // sums that a block stores
#define OWN_ROWS (TILE_N / SPLITS)
#define EACH ((OWN + GROUP - 1) / GROUP)
#if SPLITS > 1
#include "cluster.cuh"
KERNEL_CLUSTER_ALONE(SPLITS)
#else
KERNEL_RESIDENT(1)
#endif
matmul_ternary_block(const Words* w, const float* wscale, const void* q, const float* scale, const int* qsum,
                     float* __restrict__ y SQUARES_OF_Q NORM_OF_Y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first AHEAD_OF) {
    DYNAMIC_SHARED(Words, pool);
    float *partial = (float*)pool, *scales = partial + WARPS * ROOM;
    u32 n0 = blockIdx.x * TILE_N;
    float old[EACH];
    // The index of this thread's sum j, and its place in y, null if it has none.
    auto number = [=](u32 j) { return blockIdx.z * OWN + j * GROUP + threadIdx.x; };
    auto at = [=](u32 j) -> float* {
        Place place(number(j));
        u32 n = n0 + place.row;
        bool written = j * GROUP + threadIdx.x < OWN && place.token < rows && n < outs;
        return written ? y + (size_t)place.token * y_stride + y_first + n : nullptr;
    };
#if SPLITS > 1
    cluster_arrive();
#endif
#if JOINED
    __shared__ Floats gammas[OWN_ROWS / 4];
    load_gammas<OWN_ROWS>(gammas, gamma, n0 + blockIdx.z * OWN_ROWS, outs);
#endif
    multiply_rows(partial, scales, w, wscale, q, scale, qsum, SQUARES, rows, width, [=](u32 j) { return min(n0 + j, outs - 1); }, AHEAD, [&] {
#pragma unroll
        for (u32 j = 0; j < EACH; j++) old[j] = ADD && at(j) ? *at(j) : 0.0f;
    });
#if SPLITS > 1
    float* shares = scales + 16 * PIECES * PITCH;  // [SPLITS][OWN]: each block's shares of the sums that this block stores
    cluster_wait();
    for (u32 i = threadIdx.x; i < SUMS; i += GROUP)
        cluster_put(shares + blockIdx.z * OWN + i % OWN, i / OWN, sum_of_warps(partial, i));
    cluster_meet();
#endif
#pragma unroll
    for (u32 j = 0; j < EACH; j++) {
        if (!at(j)) continue;
#if SPLITS > 1
        float value = 0.0f;
#pragma unroll
        for (int z = 0; z < SPLITS; z++) value += shares[z * OWN + j * GROUP + threadIdx.x];
#else
        float value = sum_of_warps(partial, number(j));
#endif
        if (ADD) value = old[j] + value;
        *at(j) = value;
#if JOINED
        Place place(number(j));
        scales[place.token * (OWN_ROWS + 4) + place.row % OWN_ROWS] = value;  // all threads have read the scales
#endif
    }
#if JOINED
    __syncthreads();
    const NormedCodes codes = {y_q, y_largest, y_qsum, y_squares};
    codes.store_all<OWN_ROWS>(scales, rows, n0 + blockIdx.z * OWN_ROWS, outs, [&](u32 k) -> const Floats& { return gammas[k / 4]; });
#endif
}
