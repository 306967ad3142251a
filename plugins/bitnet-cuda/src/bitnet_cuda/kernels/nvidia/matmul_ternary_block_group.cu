// matmul_ternary_block for 2 to 64 rows (block_group.cuh): y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a] *
// (sum over the 32 columns of a of (code[n, k] - 1) * q[t, k]); w[outs, width / 4], q[rows, width]. ABLOCK is not 0,
// BLOCK is not 64.
// A block computes SPAN_N outputs of all rows. The SPLITS blocks that share the columns add up in the shared memory of
// their cluster's first block.
#include "prelude.cuh"
#define GATED 0
#include "block_group.cuh"
#if SPLITS > 1
#include "cluster.cuh"
#endif
#define EACH (SUMS / SHARES)  // sums that a thread adds up and stores
#define EARLY (PARTS == 1 || SPAN_T <= 32)  // values of y to add are loaded before the products: there are registers for them

// This thread's EACH sums over all warpgroups of its tile and, in a cluster's first block, over all blocks; they take
// the place of the stages.
__device__ inline void join(float (&value)[EACH], const float (&acc)[SUMS], Words* stages, u32 tile, u32 share, u32 thread) {
    float* sums = (float*)stages + thread + tile * (SHARES * SUMS * 128);
    if (SHARES > 1 || SPLITS > 1) __syncthreads();
#pragma unroll
    for (int i = 0; i < SUMS && SHARES > 1; i++) sums[(share * SUMS + i) * 128] = acc[i];
    if (SHARES > 1) __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        value[i] = SHARES > 1 ? sums[(share * EACH + i) * 128] : acc[i];
#pragma unroll
        for (int other = 1; other < SHARES; other++) value[i] += sums[(other * SUMS + share * EACH + i) * 128];
    }
#if SPLITS > 1
    float* parts = (float*)stages + WARPGROUPS * SUMS * 128 + threadIdx.x;
    cluster_meet();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (blockIdx.z) cluster_put(parts + ((blockIdx.z - 1) * EACH + i) * GROUP, 0, value[i]);
    cluster_meet();
#pragma unroll
    for (int i = 0; i < (SPLITS - 1) * EACH; i++)
        if (blockIdx.z == 0) value[i % EACH] += parts[i * GROUP];
#endif
}

#if SPLITS > 1
KERNEL_CLUSTER_ALONE(SPLITS)
#else
KERNEL_RESIDENT(1)
#endif
matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* __restrict__ y,
                     u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first, const __grid_constant__ TensorMap weights,
                     const __grid_constant__ TensorMap tokens, const __grid_constant__ TensorMap scales) {
    DYNAMIC_SHARED(Words, pool);
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 thread = threadIdx.x % 128, lane = threadIdx.x % 32, tile = threadIdx.x / 128 / SHARES, share = threadIdx.x / 128 % SHARES;
    u32 row = 64 * tile + thread / 32 * 16 + lane / 4;
    // The token and the output of a thread's value i of SUMS.
    auto sum = [=](u32 i) { return share * EACH + i; };
    auto token = [=](u32 i) { return sum(i) / 4 * 8 + lane % 4 * 2 + sum(i) % 2; };
    auto out = [=](u32 i) { return blockIdx.x * TILE_N + row + sum(i) % 4 / 2 * BESIDE; };
    auto stored = [=](u32 i) { return (!EARLY || blockIdx.z == 0) && token(i) < rows && out(i) < outs; };
    auto at = [=](u32 i) { return y + (size_t)token(i) * y_stride + y_first + out(i); };
    float acc[SUMS], value[EACH], old[EACH];
    group_sums(acc, stages, row, share, wscale, outs, width, weights, tokens, scales, [&] {
#pragma unroll
        for (int i = 0; EARLY && i < EACH; i++) old[i] = ADD && stored(i) ? *at(i) : 0.0f;
    });
    join(value, acc, stages, tile, share, thread);
    if (!EARLY && blockIdx.z) return;
#pragma unroll
    for (int i = 0; ADD && !EARLY && i < EACH; i++)
        if (stored(i)) value[i] = *at(i) + value[i];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (stored(i)) *at(i) = ADD && EARLY ? old[i] + value[i] : value[i];
}
