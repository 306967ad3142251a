// Drafts that may be among the k largest become sums over w f16[outs, width]: logits[l,n] where logits[l,n] + error[n] |x[l]| is
// not below the k-th largest of bound[l]; all of them where one of these is NaN, or there are fewer than k.
// A block looks at TILE_N drafts of one row and finds the k-th largest bound for itself, by bisection of its 32 bits. A lane
// reads twice WORDS columns at a time.
#include "prelude.cuh"
#include "bounds.cuh"

#define HEAD_GROUP 64

struct alignas(4 * WORDS) Piece {
    u32 word[WORDS];
};

__device__ inline u32 group_count(u32 mine, u32* scratch) {
    u32 sum = (u32)warp_sum_int((int)mine), all = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int i = 0; i < GROUP / 32; i++) all += scratch[i];
    return all;
}

__device__ inline u32 group_largest(u32 mine, u32* scratch) {
    u32 most = warp_max_bits(mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < GROUP / 32; i++) most = max(most, scratch[i]);
    return most;
}

// The k-th largest of count bounds, NaN where there is none. largest: the largest of those that this thread looks at.
__device__ inline float kth_largest(const float* bound, u32 count, u32 k, u32 largest) {
    __shared__ u32 scratch[GROUP / 32];
    u32 all = group_largest(largest, scratch), found = 0;
    if (all == NOT_A_NUMBER || k > count) return quiet_nan();
    if (k == 1) return number_of(all);
    for (int bit = 31; bit >= 0; bit--) {
        u32 next = found | 1u << bit, mine = 0;
        if (largest >= next)
            for (u32 i = threadIdx.x; i < count; i += GROUP) mine += order_of(bound[i]) >= next;
        if (group_count(mine, scratch) >= k) found = next;
    }
    return number_of(found);
}

KERNEL rescore_logits(const float* x, const u16* w, const float* error, const float* bound, float* logits, u32 rows,
                      u32 outs, u32 width, u32 stride, u32 k) {
    __shared__ u32 open[TILE_N], found;
    __shared__ float scratch[GROUP / 32];
    u32 l = blockIdx.y, first = blockIdx.x * TILE_N, end = min(first + TILE_N, outs);
    u32 groups = (outs + HEAD_GROUP - 1) / HEAD_GROUP, largest = 0;
    if (threadIdx.x == 0) found = 0;
    let_next_start();
    wait_for_previous();
    const float *in = x + (size_t)l * width, *bounds = bound + (size_t)l * groups;
    float draft[TILE_N / GROUP], squares = 0.0f;  // all is asked for before the block meets
#pragma unroll
    for (int i = 0; i < TILE_N / GROUP; i++)
        draft[i] = logits[(size_t)l * stride + min(first + i * GROUP + threadIdx.x, end - 1)];
#pragma unroll 8
    for (u32 i = threadIdx.x; i < groups; i += GROUP) largest = max(largest, order_of(bounds[i]));
#pragma unroll 5
    for (u32 i = threadIdx.x; i < width; i += GROUP) squares += in[i] * in[i];
    float threshold = kth_largest(bounds, groups, k, largest), length = length_from(group_sum(squares, scratch));
#pragma unroll
    for (int i = 0; i < TILE_N / GROUP; i++) {
        u32 n = first + i * GROUP + threadIdx.x;
        if (n < end && !(draft[i] + error[n] * length < threshold)) open[atomicAdd(&found, 1u)] = n;
    }
    __syncthreads();
    for (u32 i = threadIdx.x / 32; i < found; i += GROUP / 32) {
        u32 n = open[i];
        const Piece* row = (const Piece*)(w + (size_t)n * width);
        float sum = 0.0f;
#pragma unroll 5
        for (u32 c = threadIdx.x % 32; c < width / (2 * WORDS); c += 32) {
            Piece piece = row[c];
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                u32 pair = piece.word[i], k = 2 * (c * WORDS + i);
                sum += half_to_float((u16)pair) * in[k] + half_to_float((u16)(pair >> 16)) * in[k + 1];
            }
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) logits[(size_t)l * stride + n] = sum;
    }
}
