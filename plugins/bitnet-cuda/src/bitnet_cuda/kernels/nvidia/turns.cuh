// Persistent thread blocks, one per multiprocessor, that take tiles of SPAN_N weight rows x SPAN_T tokens in turns
// (compute capability 9.0). The first WARPGROUPS multiply; the others fill STAGES stages of shared memory, a column
// block of 128 each, so that the end of a tile overlaps with the loads of the next.
#include "barrier.cuh"
#include "ring.cuh"

struct Work {
    u32 tiles, across, blocks;  // across: tiles side by side along the tokens

    __device__ u32 first_n(u32 tile) const { return tile / across * SPAN_N; }
    __device__ u32 first_t(u32 tile) const { return tile % across * SPAN_T; }
};

__device__ inline Work work_of(u32 rows, u32 outs, u32 width) {
    u32 across = (rows + SPAN_T - 1) / SPAN_T;
    return {(outs + SPAN_N - 1) / SPAN_N * across, across, width / 128};
}

// A stage is full when its copies are complete and `filling` threads have arrived, and empty when all multiplying warps
// have read it. All threads must call this first; only then may they read results of earlier kernels.
__device__ inline void start_barriers(Barrier* full, Barrier* empty, u32 filling) {
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + i, filling);
            barrier_init(empty + i, 4 * WARPGROUPS);
        }
        show_barriers();
    }
    __syncthreads();
    wait_for_previous();
}
