// NVIDIA's definitions for the portable kernels. No header files, so that NVRTC needs none.
// Declares a kernel of which `blocks` blocks must fit on a multiprocessor.
#define KERNEL_RESIDENT(blocks) extern "C" __global__ void __launch_bounds__(GROUP, blocks)

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
// Returns acc + the sum over four products of signed bytes.
__device__ inline int dot4(u32 a, u32 b, int acc) { return __dp4a((int)a, (int)b, acc); }
// Returns byte I of four signed ones as f32, exactly. Integer conversions have a quarter of this rate. The lowest bits
// of 2^23 + 128 + byte are the byte with its sign inverted.
template <int I>
__device__ inline float signed_byte(u32 word) {
    return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7540 | I)) - 8388736.0f;
}
// Rounds four numbers below 2^22 times factor to nearest, ties to even, and returns their lowest bytes. Conversions to
// integers have an eighth of this rate.
__device__ inline u32 nearest_bytes(const float* v, float factor) {
    u32 of[4];
#pragma unroll
    for (int i = 0; i < 4; i++) of[i] = __float_as_uint(__fmul_rn(v[i], factor) + 12582912.0f);
    return __byte_perm(__byte_perm(of[0], of[1], 0x0040), __byte_perm(of[2], of[3], 0x0040), 0x5410);
}
__device__ inline u32 rotated_right(u32 v, u32 bits) { return __funnelshift_r(v, v, bits); }
__device__ inline float reciprocal(float v) { return __frcp_rn(v); }
// Returns a / b to two units of the last place; 0 if b is beyond 2^126.
__device__ inline float quotient(float a, float b) { return __fdividef(a, b); }
__device__ inline Words load_streaming(const Words* p) {
    Words v;
    asm("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
// Increments a counter that blocks share and returns its old value. Writes of the block before its last barrier are
// visible to later arrivals, so its threads need no fence of their own.
__device__ inline u32 arrive(u32* counter) {
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
__device__ inline void settle() {}
// Within a warp of 32 threads: v of the lane whose number differs in the bits of mask; v of a given lane; and a barrier
// that makes earlier writes visible.
template <class T>
__device__ inline T shuffle_xor(T v, int mask) {
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
template <class T>
__device__ inline T shuffle_from(T v, u32 lane) {
    return __shfl_sync(0xffffffffu, v, lane);
}
__device__ inline void sync_warp() { __syncwarp(); }

// Programmatic dependent launch (compute capability 9.0 and later; elsewhere, and in launches without the attribute,
// both do nothing): let_next_start lets the next kernel of a recording start now; it reads results of earlier kernels only
// after its own wait_for_previous. Every thread of every kernel waits, so a kernel that has ended implies that all
// before it have.
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

// Prefetches a multiple of 16 bytes into the L2 cache (compute capability 9.0 and later).
__device__ inline void fetch(const void* from, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// Prefetches the block's share of what a later kernel will read.
__device__ inline void fetch_ahead(const u8* ahead, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    u32 blocks = gridDim.x * gridDim.y * gridDim.z;
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
#ifdef AHEAD_PIECES
    if (threadIdx.x == 0 && bytes)
        for (u32 i = block; i < AHEAD_PIECES; i += blocks) fetch(ahead + (size_t)i * AHEAD_PITCH + AHEAD_SKIP, AHEAD_BYTES);
    return;
#endif
    u32 share = ((bytes + blocks - 1) / blocks + 127) / 128 * 128, first = block * share;
    if (threadIdx.x != 0 || first >= bytes) return;
    u32 size = min(share, bytes - first) / 16 * 16;
    if (size) fetch(ahead + first, size);
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
__device__ inline int warp_sum_int(int v) { return __reduce_add_sync(0xffffffffu, v); }
__device__ inline u32 warp_max_bits(u32 v) { return __reduce_max_sync(0xffffffffu, v); }
#else
__device__ inline int warp_sum_int(int v) {
    for (int d = 16; d > 0; d >>= 1) v += shuffle_xor(v, d);
    return v;
}
__device__ inline u32 warp_max_bits(u32 v) {
    for (int d = 16; d > 0; d >>= 1) v = max(v, shuffle_xor(v, d));
    return v;
}
#endif

