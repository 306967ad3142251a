// ids[l, i], values[l, i] = the k largest logits of row l that the mask allows, in descending order, equal ones by
// ascending index, NaN first, then padded with -1 and -Inf; total[l] = (m, log(sum exp(logit - m))) over all allowed
// logits, with m the largest.
// One block per row. Logits become distinct 64-bit keys: the order of the value above, the complemented index below.
// The k-th largest of the threads' own maxima is a bound that at least k keys reach, and seldom many more; these keys
// are gathered and sorted. If more than ROOM keys reach it, bisection finds a bound that fewer keys reach.
#include "prelude.cuh"
#include "mask.cuh"

#define ROOM 2048

typedef unsigned long long Key;

__device__ inline Key key_of(float v, u32 i) {
    u32 bits = v == 0.0f ? 0 : __float_as_uint(v);  // -0 equals 0
    u32 order = is_nan(v) ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)order << 32 | ~i;
}

// Returns the key of a logit. Keys of allowed logits are above 0.
__device__ inline Key key_at(const float* row, const u32* mask, u32 vocab, u32 i) {
    return allowed(mask, blockIdx.x, vocab, i) ? key_of(row[i], i) : 0;
}

__device__ inline void sort_falling(Key* keys, u32 count) {  // bitonic; count is a power of two
    for (u32 size = 2; size <= count; size *= 2)
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < count / 2; i += GROUP) {
                u32 a = 2 * i - i % stride, b = a + stride;
                Key x = keys[a], y = keys[b];
                if ((x < y) == ((a & size) == 0)) {
                    keys[a] = y;
                    keys[b] = x;
                }
            }
        }
    __syncthreads();
}

KERNEL top_k(const float* logits, const u32* mask, int* ids, float* values, float* total, u32 rows, u32 vocab, u32 stride,
             u32 k) {
    __shared__ Key keys[ROOM];
    __shared__ u32 found;
    __shared__ float scratch[GROUP / 32];
    let_next_start();
    wait_for_previous();
    const float* row = logits + (size_t)blockIdx.x * stride;
    Key largest = 0;
    for (u32 i = threadIdx.x; i < vocab; i += GROUP) largest = max(largest, key_at(row, mask, vocab, i));
    for (u32 i = threadIdx.x; i < ROOM; i += GROUP) keys[i] = i < GROUP ? largest : 0;
    sort_falling(keys, GROUP);
    float top = keys[0] ? row[~(u32)keys[0]] : minus_infinity(), sum = 0.0f;
    for (u32 i = threadIdx.x; i < vocab; i += GROUP)
        if (allowed(mask, blockIdx.x, vocab, i)) sum += expf(row[i] - top);
    sum = group_sum(sum, scratch);
    if (threadIdx.x == 0) {
        total[2 * blockIdx.x] = top;
        total[2 * blockIdx.x + 1] = logf(sum);
    }
    Key bound = max(keys[k - 1], (Key)1), low = bound, high = ~(Key)0;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) found = 0;
        for (u32 i = threadIdx.x; i < ROOM; i += GROUP) keys[i] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < vocab; i += GROUP) {
            Key key = key_at(row, mask, vocab, i);
            if (key < bound) continue;
            u32 at = atomicAdd(&found, 1);
            if (at < ROOM) keys[at] = key;
        }
        __syncthreads();
        u32 count = found;
        if (count > ROOM) low = bound;
        else if (count < k && bound > 1) high = bound;
        else break;  // enough keys, or all allowed ones
        bound = low + (high - low) / 2;
    }
    sort_falling(keys, ROOM);
    for (u32 i = threadIdx.x; i < k; i += GROUP) {
        u32 id = ~(u32)keys[i];
        bool one = keys[i] != 0;
        ids[(size_t)blockIdx.x * k + i] = one ? (int)id : -1;
        values[(size_t)blockIdx.x * k + i] = one ? row[id] : minus_infinity();
    }
}
