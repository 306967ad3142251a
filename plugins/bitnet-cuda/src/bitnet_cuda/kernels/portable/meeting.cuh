// Outputs that several blocks share (SPLITS > 1): each block leaves its part in the workspace, and the last to arrive
// combines them. The workspace starts with MEETINGS counters, zero between launches; the parts follow.
#define MEETINGS 4096

__device__ inline float* meeting_parts(u32* workspace) { return (float*)(workspace + MEETINGS); }

// Returns true in all threads of the last of `count` blocks to arrive. Earlier writes of the other blocks are then
// visible.
__device__ inline bool last_to_arrive(u32* workspace, u32 meeting, u32 count) {
    __shared__ bool last;
    settle();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = arrive(workspace + meeting) == count - 1;
        if (last) workspace[meeting] = 0;
    }
    __syncthreads();
    settle();
    return last;
}
