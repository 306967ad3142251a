// Ternary products of prompts, on warpgroup tensor cores (compute capability 9.0). Thread blocks stay, one on each
// multiprocessor, and take tiles of SPAN_N weight rows x SPAN_T tokens in turns. The last warpgroup keeps bulk copies of
// STAGES column blocks of 128 under way, the others multiply; so what ends a tile overlaps with the next one's copies. A
// stage holds activations, in the 128-byte swizzle that the tensor cores read, weights, still 2 bits, in the 32-byte
// swizzle, and EXTRA 16-byte words of the kernel's own. A lane's OWN rows of weights are neighbours, so that it writes their
// sums at once: the copy puts each 8 * OWN rows in the order of fragments. outs is a multiple of 8 * OWN, y_first and
// y_stride of OWN.
#include "barrier.cuh"
#include "ring.cuh"
#define WARPGROUPS (GROUP / 128 - 1)  // that multiply
#define SPAN_N (64 * M_TILES * WARPGROUPS)
#define OWN (2 * M_TILES)
#define WEIGHTS (SPAN_T * 8)
#define FACTORS (WEIGHTS + SPAN_N * 2)
#define STAGE (FACTORS + EXTRA)

struct alignas(4 * OWN) Outs {
    float v[OWN];
};

struct Work {
    u32 tiles, across, blocks;  // across: tiles side by side along the tokens

    __device__ u32 first_n(u32 tile) const { return tile / across * SPAN_N; }
    __device__ u32 first_t(u32 tile) const { return tile % across * SPAN_T; }
};

__device__ inline Work work_of(u32 rows, u32 outs, u32 width) {
    u32 across = (rows + SPAN_T - 1) / SPAN_T;
    return {(outs + SPAN_N - 1) / SPAN_N * across, across, width / 128};
}

// A stage is full when its copies have come, and empty when all warps that multiply have read it. All threads come here
// first, and read what earlier kernels wrote only after it.
__device__ inline void start_barriers(Barrier* full, Barrier* empty) {
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 4 * WARPGROUPS);
        }
        show_barriers();
    }
    __syncthreads();
    wait_for_previous();
}

// One thread's copies of a column block; `more` bytes follow.
__device__ inline void copy_block(const Work& work, Words* stage, const TensorMap& weights, const TensorMap& tokens,
                                  u32 tile, u32 block, u32 more, Barrier* full) {
    barrier_expect(full, 16 * FACTORS + more);
    copy_box(stage, tokens, block * 128, work.first_t(tile), full);
    copy_groups(stage + WEIGHTS, weights, block * 32, work.first_n(tile) / (8 * OWN), full);
}
