// Shared by every kernel. The constants (GROUP, TILE_N, TILE_T, DTYPE, ADD, NORM, ACT, KV, INTERLEAVED, BLOCK, ABLOCK,
// QKNORM, MASK and those of one kernel) are defined before this file. Blocks are one-dimensional with GROUP threads, a
// multiple of 32. A "warp" is 32 neighbouring threads on all hardware. vendor.cuh has the parts that each vendor writes
// differently.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

#define KV_BLOCK 64
#define KERNEL extern "C" __global__ void __launch_bounds__(GROUP)

struct alignas(16) Words {
    u32 x, y, z, w;
};
struct alignas(16) Floats {
    float x, y, z, w;
};
struct alignas(16) Row {
    int token, position, slot, sequence;
};

#include "vendor.cuh"

__device__ inline bool not_finite(float v) { return (__float_as_uint(v) & 0x7f800000u) == 0x7f800000u; }
__device__ inline bool is_nan(float v) { return (__float_as_uint(v) & 0x7fffffffu) > 0x7f800000u; }
__device__ inline float quiet_nan() { return __uint_as_float(0x7fc00000u); }
__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline float minus_infinity() { return -infinity(); }

__device__ inline float warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v += shuffle_xor(v, d);
    return v;
}
__device__ inline float warp_max(float v) {
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, shuffle_xor(v, d));
    return v;
}

// Returns the largest v of SIZE neighbouring threads; SIZE is a power of two.
template <int SIZE>
__device__ inline u32 neighbours_max_bits(u32 v) {
    if (SIZE == 32) return warp_max_bits(v);
    for (int d = 1; d < SIZE; d *= 2) v = max(v, shuffle_xor(v, d));
    return v;
}

// Reductions over the block; `scratch`: in shared memory, one element per warp.
__device__ inline float group_sum(float v, float* scratch) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < GROUP / 32; i++) total += scratch[i];
    return total;
}
__device__ inline float group_max(float v, float* scratch) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float largest = scratch[0];
    for (int i = 1; i < GROUP / 32; i++) largest = fmaxf(largest, scratch[i]);
    return largest;
}
