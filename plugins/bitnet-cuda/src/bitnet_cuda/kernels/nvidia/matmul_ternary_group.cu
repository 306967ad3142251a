// matmul_ternary for batches (ternary_group.cuh): y[t, n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] *
// wscale[n]; w[outs, width / 4], q[rows, width]. outs, y_first and y_stride are even.
// The SPLITS blocks that share the columns add up in the last one to arrive or, with CLUSTERS, in the shared memory of
// the cluster's first block.
#include "prelude.cuh"
#include "ternary_group.cuh"
#include "meeting.cuh"
#if CLUSTERS
#include "cluster.cuh"
#endif
#define TOKENS (SPAN_T / 4 / SHARES)  // tokens of which a thread writes two outputs each

#if CLUSTERS
// Adds the sums of all SPLITS blocks of a cluster in the first of them; returns false in the others. own: unused shared
// memory.
__device__ inline bool joined(int (&dots)[TOKENS][2], u32* own) {
    int* parts = (int*)own;
    cluster_wait();
#pragma unroll
    for (int i = 0; i < 2 * TOKENS && blockIdx.z; i++)
        cluster_put(parts + ((blockIdx.z - 1) * 2 * TOKENS + i) * GROUP + threadIdx.x, 0, dots[i / 2][i % 2]);
    cluster_meet();
    if (blockIdx.z) return false;
#pragma unroll
    for (int i = 0; i < (SPLITS - 1) * 2 * TOKENS; i++) dots[i / 2 % TOKENS][i % 2] += parts[i * GROUP + threadIdx.x];
    return true;
}

KERNEL_CLUSTER(SPLITS)
#else
// Adds the sums of all SPLITS blocks in the last of them to arrive; returns false in the others.
__device__ inline bool joined(int (&dots)[TOKENS][2], u32* workspace) {
    u32 tile = blockIdx.y * gridDim.x + blockIdx.x;
    int* parts = (int*)meeting_parts(workspace) + (size_t)tile * SPLITS * (2 * TOKENS * GROUP) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 2 * TOKENS; i++) parts[(blockIdx.z * 2 * TOKENS + i) * GROUP] = dots[i / 2][i % 2];
    if (!last_to_arrive(workspace, tile, SPLITS)) return false;
#pragma unroll
    for (int i = 0; i < 2 * TOKENS; i++) {
        dots[i / 2][i % 2] = 0;
#pragma unroll
        for (int z = 0; z < SPLITS; z++) dots[i / 2][i % 2] += parts[(z * 2 * TOKENS + i) * GROUP];
    }
    return true;
}

KERNEL
#endif
matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                      float* __restrict__ y, u32* workspace, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                      const __grid_constant__ TensorMap tokens) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Shared s;
    Group group(pool, width);
    u32 n = blockIdx.x * TILE_N + 64 * group.tile + group.n, t_first = blockIdx.y * SPAN_T;
    let_next_start();
#if CLUSTERS
    cluster_arrive();
#endif
    Words codes[PAIRS][2];
    group.load(codes, w, [=](u32 r) { return (size_t)min(n + r, outs - 1); });
    Pair scales = *(const Pair*)(wscale + min(n, outs - 2));
    group.start_barriers(s);
    Fragments a;
    group.unpack_ahead(codes, a);
    wait_for_previous();
    group.copy(s, tokens, scale, qsum, t_first, rows);
    auto out = [&](u32 token) { return (Pair*)(y + (size_t)(t_first + token) * y_stride + y_first + n); };
    Pair old[TOKENS];
#pragma unroll
    for (int e = 0; ADD && e < TOKENS; e++) {
        u32 token = group.token(group.share * TOKENS + e);
        if (t_first + token < rows && n < outs) old[e] = *out(token);
    }
    int acc[SUMS];
    group.multiply(s, codes, a, acc);
    group.put(acc);
    int dots[TOKENS][2];
#pragma unroll
    for (int i = 0; i < 2 * TOKENS; i++) dots[i / 2][i % 2] = group.sum(group.tile, group.share * TOKENS + i / 2, i % 2);
    if (SPLITS > 1 && !joined(dots, CLUSTERS ? (u32*)group.parts() : workspace)) return;
    if (n >= outs) return;
#pragma unroll
    for (int e = 0; e < TOKENS; e++) {
        u32 token = group.token(group.share * TOKENS + e);
        Pair v;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            v.v[r] = (float)(dots[e][r] - s.qsum[token]) * s.scale[token] * scales.v[r];
            if (ADD) v.v[r] = old[e].v[r] + v.v[r];
        }
        if (t_first + token < rows) *out(token) = v;
    }
}
