// Blocks that share a row's positions: each leaves (largest score, sum of weights, -, -, weighted values[DIM]) per head in
// the workspace, see meeting.cuh. Needs H, the heads of a block, DIM and SPLITS.
#include "meeting.cuh"

#define PART (DIM + 4)

// What a part counts for beside the largest score of all. A part without positions has no sum; NaN is not equal to zero.
__device__ inline float share(float top, float total, float top_of_all) {
    return total == 0.0f ? 0.0f : top == top_of_all ? 1.0f : expf(top - top_of_all);
}

__device__ inline float* attention_part(u32* workspace, size_t head, u32 split) {
    return meeting_parts(workspace) + (head * SPLITS + split) * PART;
}

// out of heads first_head .. first_head + H - 1 (counted over all rows), from their parts.
__device__ inline void join_parts(u32* workspace, size_t first_head, u32 splits, float* out) {
    for (u32 i = threadIdx.x; i < H * DIM; i += GROUP) {
        size_t head = first_head + i / DIM;
        const float* parts = attention_part(workspace, head, 0);
        float top = minus_infinity(), total = 0.0f, sum = 0.0f;
#pragma unroll 8
        for (u32 s = 0; s < splits; s++) top = fmaxf(top, parts[s * PART]);
#pragma unroll 8
        for (u32 s = 0; s < splits; s++) {
            const float* from = parts + s * PART;
            float weight = share(from[0], from[1], top);
            total += from[1] * weight;
            sum += from[4 + i % DIM] * weight;
        }
        out[head * DIM + i % DIM] = sum / total;
    }
}

// inverses[which] of the block's H query heads and its key head, where QKNORM is 1; head_of(which): its DIM elements.
template <class HeadOf>
__device__ inline void head_inverses(float* inverses, HeadOf head_of, float eps) {
    if (!QKNORM) return;
    for (u32 which = threadIdx.x / 32; which <= H; which += GROUP / 32) {
        const float* x = head_of(which);
        float squares = 0.0f;
        for (u32 d = threadIdx.x % 32; d < DIM; d += 32) squares += x[d] * x[d];
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) inverses[which] = head_inverse(squares, DIM, eps);
    }
    __syncthreads();
}
