// The logits that may be among the k largest: those with logits[l,n] + error[n] |x[l]| not below the k-th largest of
// bound[l]; all of them if a bound is NaN or if there are fewer than k bounds.
// A block looks at TILE_N <= 65,536 approximate logits of one row, BATCH per thread at a time. It finds the k-th largest
// bound itself, by bisection of its 32 bits.
#include "bounds.cuh"

#define HEAD_GROUP 64
#define BATCH (TILE_N / GROUP < 8 ? TILE_N / GROUP : 8)

__device__ inline u32 group_count(u32 mine, u32* scratch) {
    u32 sum = (u32)warp_sum_int((int)mine), all = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int i = 0; i < GROUP / 32; i++) all += scratch[i];
    return all;
}

// The largest of the bounds that the threads of the block hold, and the sum of their squares, in one block-wide
// reduction.
struct Seen {
    u32 largest;
    float squares;
};
__device__ inline Seen group_seen(Seen mine) {
    __shared__ Seen of_warp[GROUP / 32];
    Seen all = {warp_max_bits(mine.largest), warp_sum(mine.squares)};
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = all;
    __syncthreads();
    all = of_warp[0];
    for (int i = 1; i < GROUP / 32; i++)
        all = {max(all.largest, of_warp[i].largest), all.squares + of_warp[i].squares};
    return all;
}

// Returns the k-th largest of count bounds, NaN if there is none. all: the largest bound; largest: the largest of this
// thread's bounds.
__device__ inline float kth_largest(const float* bound, u32 count, u32 k, u32 all, u32 largest) {
    __shared__ u32 scratch[GROUP / 32];
    u32 found = 0;
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

// Loads from[start], from[start + step], ... up to `end`, all at once.
template <class T, int COUNT>
__device__ inline void load_batch(T (&to)[COUNT], const T* from, u32 start, u32 step, u32 end) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = from[min(start + i * step, end - 1)];
}

// Returns the block's largest bound and the sum of squares of x.
__device__ inline Seen look(const float* bounds, u32 groups, const Floats* x, u32 fours) {
    Seen mine = {0, 0.0f};
    for (u32 start = threadIdx.x; start < max(groups, fours); start += 8 * GROUP) {
        float bound[8];
        Floats four[8];
        load_batch(bound, bounds, start, GROUP, groups);
        load_batch(four, x, start, GROUP, fours);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            Floats v = four[i];
            mine.largest = max(mine.largest, order_of(bound[i]));
            if (start + i * GROUP < fours) mine.squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
    }
    return mine;
}

// Lists in open[TILE_N] those of the block's logits, counted from blockIdx.x * TILE_N, and returns their number. Waits for
// the preceding kernels.
__device__ inline u32 open_logits(u16* open, const float* x, const float* error, const float* bound, const float* logits, u32 outs,
                                  u32 width, u32 stride, u32 k) {
    __shared__ u32 found;
    u32 l = blockIdx.y, first = blockIdx.x * TILE_N, end = min(first + TILE_N, outs);
    u32 groups = (outs + HEAD_GROUP - 1) / HEAD_GROUP;
    float approx[BATCH], apart[BATCH];  // the first batch is loaded before the block's reduction
    if (threadIdx.x == 0) found = 0;
    let_next_start();
    load_batch(apart, error, first + threadIdx.x, GROUP, end);
    wait_for_previous();
    const float *in = x + (size_t)l * width, *bounds = bound + (size_t)l * groups, *row = logits + (size_t)l * stride;
    load_batch(approx, row, first + threadIdx.x, GROUP, end);
    Seen mine = look(bounds, groups, (const Floats*)in, width / 4);
    Seen all = group_seen(mine);
    float threshold = kth_largest(bounds, groups, k, all.largest, mine.largest), length = length_from(all.squares);
    for (u32 start = first;; start += BATCH * GROUP) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            u32 n = start + i * GROUP + threadIdx.x;
            if (n < end && !(approx[i] + apart[i] * length < threshold)) open[atomicAdd(&found, 1u)] = (u16)(n - first);
        }
        if (start + BATCH * GROUP >= end) break;
        load_batch(approx, row, start + BATCH * GROUP + threadIdx.x, GROUP, end);
        load_batch(apart, error, start + BATCH * GROUP + threadIdx.x, GROUP, end);
    }
    __syncthreads();
    return found;
}
