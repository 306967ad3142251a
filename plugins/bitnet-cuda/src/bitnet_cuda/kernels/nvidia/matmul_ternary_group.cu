// matmul_ternary on Hopper's warpgroup tensor cores (compute capability 9.0), for batches: exact integers.
// y[t, n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n], w[outs, width / 4], q[rows, width].
// A block makes 64 * M_TILES weight rows x SPAN_T tokens. Its warpgroups share the columns, BLOCKS blocks of 128 each. Nothing
// comes twice: a warpgroup has all its codes under way, in registers, before the kernels ahead have ended, and then all its
// columns of the activations, by bulk copies in the 128-byte swizzle. I2_S blocks are the A fragments (matmul_ternary_mma.cu).
// A lane's OWN rows of weights are neighbours, as in stream.cuh: outs, y_first and y_stride are multiples of OWN.
#include "prelude.cuh"
#include "tensor.cuh"
#define CODE "u8"
#include "warpgroup.cuh"
#include "barrier.cuh"
#define WARPGROUPS (GROUP / 128)
#define OWN (2 * M_TILES)
#define SUMS (M_TILES * SPAN_T / 2)           // of a thread, before warpgroups add up
#define TOKENS (SPAN_T / 4 / WARPGROUPS)      // that a thread writes, OWN outputs of each

struct alignas(4 * OWN) Outs {
    float v[OWN];
};

// The codes of a warpgroup's blocks from `first` on, for rows n.. of a lane.
__device__ inline void load_codes(u32 (&codes)[BLOCKS][M_TILES][4], const u32* w, u32 n, u32 outs, u32 first, u32 blocks) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 2 * OWN; i++) {
            const u32* row = w + (size_t)min(n + i / 2, outs - 1) * (blocks * 8) + threadIdx.x % 4 + i % 2 * 4;
            codes[b][i / 4][i % 2 * 2 + i / 2 % 2] = first + b < blocks ? row[(first + b) * 8] : 0;
        }
}

KERNEL matmul_ternary(const u32* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                      float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                      const __grid_constant__ TensorMap tokens) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier come[WARPGROUPS * BLOCKS];
    Words* columns = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 thread = threadIdx.x % 128, share = threadIdx.x / 128, t = threadIdx.x % 4, blocks = width / 128;
    u32 n = blockIdx.x * TILE_N + thread / 32 * (16 * M_TILES) + thread % 32 / 4 * OWN;
    u32 t_first = blockIdx.y * SPAN_T, first = share * BLOCKS;
    let_next_start();
    u32 codes[BLOCKS][M_TILES][4];
    load_codes(codes, w, n, outs, first, blocks);
    Outs scales = *(const Outs*)(wscale + min(n, outs - OWN));
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < WARPGROUPS * BLOCKS; i++) barrier_init(come + i, 1);
        show_barriers();
    }
    __syncthreads();
    wait_for_previous();
    if (thread == 0)
        for (u32 b = first; b < min(first + BLOCKS, blocks); b++) {
            barrier_expect(come + b, 128 * SPAN_T);
            copy_box(columns + b * SPAN_T * 8, tokens, b * 128, t_first, come + b);
        }
    Outs old[TOKENS];
    float factor[TOKENS];
    int sum[TOKENS];
#pragma unroll
    for (int e = 0; e < TOKENS; e++) {
        u32 at = share * TOKENS + e, token = t_first + at / 2 * 8 + 2 * t + at % 2;
        bool used = token < rows && n < outs;
        if (ADD && used) old[e] = *(const Outs*)(y + (size_t)token * y_stride + y_first + n);
        factor[e] = used ? scale[token] : 0.0f;
        sum[e] = used ? qsum[token] : 0;
    }
    int acc[M_TILES][SPAN_T / 2] = {};
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (first + b >= blocks) break;
        u32 a[M_TILES][4][4];
#pragma unroll
        for (int i = 0; i < 16 * M_TILES; i++)
            a[i / 16][i / 4 % 4][i % 4] = (codes[b][i / 16][i % 4] >> (6 - 2 * (i / 4 % 4))) & 0x03030303u;
        barrier_wait(come + first + b, 0);
        warpgroup_arrive();
#pragma unroll
        for (int i = 0; i < 4 * M_TILES; i++)
            warpgroup_mma(acc[i % M_TILES], a[i % M_TILES][i / M_TILES], columns + (first + b) * SPAN_T * 8, i / M_TILES,
                          b || i / M_TILES);
        warpgroup_commit();
        warpgroup_wait<0>();
    }
    __syncthreads();  // nobody needs the activations any more
    int* sums = (int*)columns + thread;
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[(share * SUMS + i) * 128] = acc[i / (SPAN_T / 2)][i % (SPAN_T / 2)];
    __syncthreads();
    if (n >= outs) return;
#pragma unroll
    for (int e = 0; e < TOKENS; e++) {
        u32 at = share * TOKENS + e, token = t_first + at / 2 * 8 + 2 * t + at % 2;
        Outs v;
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            u32 i = r / 2 * (SPAN_T / 2) + at / 2 * 4 + r % 2 * 2 + at % 2;
            int dot = -sum[e];
#pragma unroll
            for (int s = 0; s < WARPGROUPS; s++) dot += sums[(s * SUMS + i) * 128];
            v.v[r] = (float)dot * factor[e] * scales.v[r];
            if (ADD) v.v[r] = old[e].v[r] + v.v[r];
        }
        if (token < rows) *(Outs*)(y + (size_t)token * y_stride + y_first + n) = v;
    }
}
