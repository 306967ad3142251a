// Shared by every kernel. Constants (GROUP, TILE_N, TILE_T, DTYPE, ADD, NORM, ACT, KV, INTERLEAVED, BLOCK) are defined
// before this file. Blocks are one-dimensional with GROUP threads, a multiple of 32.
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

// Without cuda_fp16.h, so that NVRTC needs no header files. CPU_EMULATION supplies these itself.
#ifndef CPU_EMULATION
__device__ inline float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ inline u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
// acc + sum over four bytes of codes (0..127) * signed q
__device__ inline int dot4(u32 codes, u32 q, int acc) { return __dp4a((int)codes, (int)q, acc); }
// To nearest, ties to even; 0 for NaN.
__device__ inline int nearest(float v) { return __float2int_rn(v); }
__device__ inline float reciprocal(float v) { return __frcp_rn(v); }
__device__ inline Words load_streaming(const Words* p) {
    Words v;
    asm("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
#endif

// Programmatic dependent launch (compute capability 9.0 and later; elsewhere, and in launches without the attribute,
// both do nothing): the next kernel of a recording may start now, and reads what kernels before it wrote only after its
// own wait_for_previous. Every thread of every kernel waits, so a kernel that has ended means that all before it have.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for the block's share of what a later kernel will read, into the L2 cache (compute capability 9.0 and later).
__device__ inline void fetch_ahead(const u8* ahead, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    u32 blocks = gridDim.x * gridDim.y * gridDim.z;
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 share = ((bytes + blocks - 1) / blocks + 127) / 128 * 128, first = block * share;
    if (threadIdx.x != 0 || first >= bytes) return;
    u32 size = min(share, bytes - first) / 16 * 16;
    if (size) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ahead + first), "r"(size) : "memory");
#endif
}

__device__ inline bool not_finite(float v) { return (__float_as_uint(v) & 0x7f800000u) == 0x7f800000u; }
__device__ inline bool is_nan(float v) { return (__float_as_uint(v) & 0x7fffffffu) > 0x7f800000u; }
__device__ inline float quiet_nan() { return __uint_as_float(0x7fc00000u); }
__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline float minus_infinity() { return -infinity(); }

__device__ inline float warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ inline float warp_max(float v) {
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ inline int warp_sum_int(int v) { return __reduce_add_sync(0xffffffffu, v); }
__device__ inline u32 warp_max_bits(u32 v) { return __reduce_max_sync(0xffffffffu, v); }
#else
__device__ inline int warp_sum_int(int v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ inline u32 warp_max_bits(u32 v) {
    for (int d = 16; d > 0; d >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
#endif

// Reductions over the block; `scratch` is shared, one element per warp.
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
