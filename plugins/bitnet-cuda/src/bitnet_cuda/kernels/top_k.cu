// ids[l, i], values[l, i] = the k largest logits of row l in falling order, equal ones by rising index, NaN first.
// One block per row. Logits become 64-bit keys that are all different: order of the value above, ~index below. The k-th
// largest of the threads' own maxima is a bound that at least k keys reach, and seldom many more: those are gathered
// and sorted. Where more than ROOM keys reach it, bisection finds a bound that fewer do.
#include "prelude.cuh"

#define ROOM 2048

typedef unsigned long long Key;

__device__ inline Key key_of(float v, u32 i) {
    u32 bits = v == 0.0f ? 0 : __float_as_uint(v);  // -0 equals 0
    u32 order = is_nan(v) ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (Key)order << 32 | ~i;
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

KERNEL top_k(const float* logits, int* ids, float* values, u32 rows, u32 vocab, u32 k) {
    __shared__ Key keys[ROOM];
    __shared__ u32 found;
    const float* row = logits + (size_t)blockIdx.x * vocab;
    Key largest = 0;
    for (u32 i = threadIdx.x; i < vocab; i += GROUP) largest = max(largest, key_of(row[i], i));
    for (u32 i = threadIdx.x; i < ROOM; i += GROUP) keys[i] = i < GROUP ? largest : 0;
    sort_falling(keys, GROUP);
    Key bound = keys[k - 1], low = bound, high = ~(Key)0;
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) found = 0;
        for (u32 i = threadIdx.x; i < ROOM; i += GROUP) keys[i] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < vocab; i += GROUP) {
            Key key = key_of(row[i], i);
            if (key < bound) continue;
            u32 at = atomicAdd(&found, 1);
            if (at < ROOM) keys[at] = key;
        }
        __syncthreads();
        u32 count = found;
        if (count > ROOM) low = bound;
        else if (count < k) high = bound;
        else break;
        bound = low + (high - low) / 2;
    }
    sort_falling(keys, ROOM);
    for (u32 i = threadIdx.x; i < k; i += GROUP) {
        u32 id = ~(u32)keys[i];
        ids[(size_t)blockIdx.x * k + i] = (int)id;
        values[(size_t)blockIdx.x * k + i] = row[id];
    }
}
