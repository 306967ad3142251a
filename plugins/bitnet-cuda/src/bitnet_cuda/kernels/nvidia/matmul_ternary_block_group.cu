// matmul_ternary_block for 2 to 64 rows: see block_group.cuh. A block makes SPAN_N outputs of SPAN_T rows; two parts of the columns (SPLITS)
// are joined in the shared memory of a cluster's first block.
// y[t, n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a] * (sum over the 32 columns of a of (code[n, k] - 1) * q[t, k]),
// w[outs, width / 4], q[rows, width]. ABLOCK is not 0, BLOCK not 64.
#include "prelude.cuh"
#include "block_group.cuh"
#if SPLITS > 1
#include "cluster.cuh"
#define PER_THREAD ((SUMS + WARPGROUPS - 1) / WARPGROUPS)
KERNEL_CLUSTER(SPLITS)
#else
#define PER_THREAD (SHARES > 1 ? (SUMS + WARPGROUPS - 1) / WARPGROUPS : SUMS)
KERNEL
#endif
matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* __restrict__ y,
                     u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first, const __grid_constant__ TensorMap weights,
                     const __grid_constant__ TensorMap tokens, const __grid_constant__ TensorMap scales) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Shared s;
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    float* own = (float*)(stages + STAGES * STAGE);
    u32 warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    u32 pitch = Part::pitch(width), n_first = blockIdx.x * SPAN_N, t_first = blockIdx.y * SPAN_T;
    Part part(width);
    Copies copies = {stages, s, weights, tokens, scales, n_first, t_first};
    bool copying = threadIdx.x == 0;
    let_next_start();
    if (copying) {
        for (u32 i = 0; i < STAGES; i++) barrier_init(s.codes + i, 1), barrier_init(s.tokens + i, 1), barrier_init(s.empty + i, 4 * WARPGROUPS);
        show_barriers();
        for (u32 i = 0; i < min((u32)STAGES, part.lines); i++) copies.codes(i, part.first + i);
    }
#if SPLITS > 1
    cluster_arrive();
#endif
    load_scales(own, wscale, part, n_first, outs, width);
    wait_for_previous();
    for (u32 i = 0; copying && i < min((u32)STAGES, part.lines); i++) copies.tokens(i, part.first + i);
    copy_wait<0>();
    __syncthreads();
    u32 row = (SHARES > 1 ? 0 : 64 * warpgroup) + thread / 32 * 16 + lane / 4;
    float acc[SUMS];
    Multiplier multiplier = {stages, s, own + row * pitch, pitch, row, SHARES > 1 ? warpgroup : 0, lane};
    multiplier.part(acc, part, copies);
    // Of a thread's sum i: its token and its output.
    auto token = [=](u32 i) { return t_first + i / 4 * 8 + lane % 4 * 2 + i % 2; };
    auto out = [=](u32 i) { return n_first + row + i % 4 / 2 * 8; };
#if SHARES > 1
    // Sums of all warpgroups, in place of the stages; a warpgroup adds up every third.
    float* sums = (float*)stages + thread;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums[(warpgroup * SUMS + i) * 128] = acc[i];
    __syncthreads();
    auto mine = [=](u32 i) { return i * WARPGROUPS + warpgroup; };
    float value[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        u32 at = min(mine(i), SUMS - 1u);
        value[i] = sums[at * 128] + sums[(SUMS + at) * 128] + sums[(2 * SUMS + at) * 128];
    }
#if SPLITS > 1
    float* others = own + SPAN_N * pitch + thread;
    cluster_wait();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        if (blockIdx.z && mine(i) < SUMS) cluster_put(others + mine(i) * 128, 0, value[i]);
    cluster_meet();
    if (blockIdx.z) return;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) value[i] += others[min(mine(i), SUMS - 1u) * 128];
#endif
#else
    auto mine = [=](u32 i) { return i; };
    auto& value = acc;
#endif
    auto stored = [=](u32 i) { return mine(i) < SUMS && token(mine(i)) < rows && out(mine(i)) < outs; };
    auto at = [=](u32 i) { return y + (size_t)token(mine(i)) * y_stride + y_first + out(mine(i)); };
#pragma unroll
    for (int i = 0; ADD && i < PER_THREAD; i++)
        if (stored(i)) value[i] = *at(i) + value[i];
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
        if (stored(i)) *at(i) = value[i];
}
