// Drafts that may be among the k largest become sums over w f16[outs, width]: logits[l,n] where logits[l,n] + error[n] |x[l]| is
// not below the k-th largest of bound[l]; all of them where one of these is NaN, or there are fewer than k.
// A block looks at TILE_N drafts of one row and finds the k-th largest bound for itself, by bisection of its 32 bits.
#include "prelude.cuh"
#include "length.cuh"

#define HEAD_GROUP 64

// Orders like the numbers.
__device__ inline u32 order_of(float v) {
    u32 bits = v == 0.0f ? 0 : __float_as_uint(v);  // -0 equals 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float number_of(u32 order) { return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

__device__ inline u32 group_count(u32 mine, u32* scratch) {
    u32 sum = (u32)warp_sum_int((int)mine), all = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int i = 0; i < GROUP / 32; i++) all += scratch[i];
    return all;
}

// The k-th largest of count bounds, NaN where there is none.
__device__ inline float kth_largest(const float* bound, u32 count, u32 k) {
    __shared__ u32 scratch[GROUP / 32];
    u32 bad = 0, largest = 0;
    for (u32 i = threadIdx.x; i < count; i += GROUP) {
        bad |= is_nan(bound[i]);
        largest = max(largest, order_of(bound[i]));
    }
    if (group_count(bad, scratch) || k > count) return quiet_nan();
    u32 found = 0;
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
    u32 l = blockIdx.y, first = blockIdx.x * TILE_N, end = min(first + TILE_N, outs);
    u32 groups = (outs + HEAD_GROUP - 1) / HEAD_GROUP;
    if (threadIdx.x == 0) found = 0;
    let_next_start();
    wait_for_previous();
    const float* in = x + (size_t)l * width;
    float length = length_of(in, width), threshold = kth_largest(bound + (size_t)l * groups, groups, k);
    for (u32 n = first + threadIdx.x; n < end; n += GROUP)
        if (!(logits[(size_t)l * stride + n] + error[n] * length < threshold)) open[atomicAdd(&found, 1u)] = n;
    __syncthreads();
    for (u32 i = threadIdx.x / 32; i < found; i += GROUP / 32) {
        u32 n = open[i];
        const u32* row = (const u32*)(w + (size_t)n * width);
        float sum = 0.0f;
        for (u32 c = threadIdx.x % 32; c < width / 2; c += 32) {
            u32 pair = row[c];
            sum += half_to_float((u16)pair) * in[2 * c] + half_to_float((u16)(pair >> 16)) * in[2 * c + 1];
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) logits[(size_t)l * stride + n] = sum;
    }
}
