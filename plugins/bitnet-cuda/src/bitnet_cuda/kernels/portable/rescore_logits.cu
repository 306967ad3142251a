// Drafts that may be among the k largest become sums over w f16[outs, width]: logits[l,n] where logits[l,n] + error[n] |x[l]| is
// not below the k-th largest of bound[l]; all of them where one of these is NaN, or there are fewer than k.
// A block looks at TILE_N <= 65,536 drafts of one row, BATCH of a thread at a time, and finds the k-th largest bound for itself, by
// bisection of its 32 bits. A lane reads twice WORDS columns at a time.
#include "prelude.cuh"
#include "bounds.cuh"

#define HEAD_GROUP 64
#define BATCH (TILE_N / GROUP < 8 ? TILE_N / GROUP : 8)

struct alignas(4 * WORDS) Piece {
    u32 word[WORDS];
};
struct alignas(WORDS == 1 ? 8 : 16) Columns {  // of x, for a piece
    float v[2 * WORDS];
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

// A thread's values from `start` on, as far as they are before `end`.
__device__ inline void load_batch(float (&to)[BATCH], const float* from, u32 start, u32 end) {
#pragma unroll
    for (int i = 0; i < BATCH; i++) to[i] = from[min(start + i * GROUP + threadIdx.x, end - 1)];
}

KERNEL rescore_logits(const float* x, const u16* w, const float* error, const float* bound, float* logits, u32 rows,
                      u32 outs, u32 width, u32 stride, u32 k) {
    __shared__ u16 open[TILE_N];
    __shared__ u32 found;
    __shared__ float scratch[GROUP / 32];
    u32 l = blockIdx.y, first = blockIdx.x * TILE_N, end = min(first + TILE_N, outs);
    u32 groups = (outs + HEAD_GROUP - 1) / HEAD_GROUP, largest = 0;
    if (threadIdx.x == 0) found = 0;
    let_next_start();
    wait_for_previous();
    const float *in = x + (size_t)l * width, *bounds = bound + (size_t)l * groups, *row = logits + (size_t)l * stride;
    float draft[BATCH], apart[BATCH], squares = 0.0f;  // the first ones are asked for before the block meets
    load_batch(draft, row, first, end);
    load_batch(apart, error, first, end);
#pragma unroll 8
    for (u32 i = threadIdx.x; i < max(groups, width / 4); i += GROUP) {
        if (i < groups) largest = max(largest, order_of(bounds[i]));
        Floats v = i < width / 4 ? ((const Floats*)in)[i] : Floats{0.0f, 0.0f, 0.0f, 0.0f};
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    float threshold = kth_largest(bounds, groups, k, largest), length = length_from(group_sum(squares, scratch));
    for (u32 start = first; start < end; start += BATCH * GROUP) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            u32 n = start + i * GROUP + threadIdx.x;
            if (n < end && !(draft[i] + apart[i] * length < threshold)) open[atomicAdd(&found, 1u)] = (u16)(n - first);
        }
        load_batch(draft, row, start + BATCH * GROUP, end);
        load_batch(apart, error, start + BATCH * GROUP, end);
    }
    __syncthreads();
    for (u32 i = threadIdx.x / 32; i < found; i += GROUP / 32) {
        u32 n = first + open[i];
        const Piece* exact = (const Piece*)(w + (size_t)n * width);
        float sum = 0.0f;
#pragma unroll 5
        for (u32 c = threadIdx.x % 32; c < width / (2 * WORDS); c += 32) {
            Piece piece = exact[c];
            Columns k = ((const Columns*)in)[c];
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                u32 pair = piece.word[i];
                sum += half_to_float((u16)pair) * k.v[2 * i] + half_to_float((u16)(pair >> 16)) * k.v[2 * i + 1];
            }
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) logits[(size_t)l * stride + n] = sum;
    }
}
