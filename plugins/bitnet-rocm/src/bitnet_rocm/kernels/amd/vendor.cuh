// AMD's definitions of the primitives of the portable kernels; threadIdx, __shared__, expf and the like are built into
// hipRTC. HIP's second launch bound differs: it counts waves per SIMD.
#define KERNEL_RESIDENT(blocks) KERNEL
typedef u32 FourWords __attribute__((ext_vector_type(4)));

__device__ inline float half_to_float(u16 h) {
    _Float16 v;
    __builtin_memcpy(&v, &h, 2);
    return (float)v;
}
__device__ inline u16 float_to_half(float f) {
    _Float16 v = (_Float16)f;
    u16 h;
    __builtin_memcpy(&h, &v, 2);
    return h;
}
// Returns acc + the sum over four products of signed bytes: one instruction from gfx906 on, except on gfx1010 and
// gfx1013.
__device__ inline int dot4(u32 a, u32 b, int acc) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, acc, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || \
    defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) ||                     \
    defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) || defined(__gfx1036__)
    return __builtin_amdgcn_sdot4((int)a, (int)b, acc, false);
#else
    for (int i = 0; i < 32; i += 8) acc += (int)(signed char)(a >> i) * (int)(signed char)(b >> i);
    return acc;
#endif
}
// Returns byte I of four signed ones.
template <int I>
__device__ inline float signed_byte(u32 word) {
    return (float)(signed char)(word >> 8 * I);
}
// Increments a counter that blocks share and returns its old value, with a fence before and after it in every thread.
__device__ inline u32 arrive(u32* counter) { return atomicAdd(counter, 1u); }
__device__ inline void settle() { __threadfence(); }
// Rounds to nearest, ties to even; 0 for NaN.
__device__ inline int nearest(float v) { return v == v ? (int)rintf(v) : 0; }
// Rounds four numbers times factor to nearest, and returns their lowest bytes.
__device__ inline u32 nearest_bytes(const float* v, float factor) {
    u32 packed = 0;
    for (int i = 0; i < 4; i++) packed |= ((u32)nearest(v[i] * factor) & 255u) << (8 * i);
    return packed;
}
__device__ inline float reciprocal(float v) { return 1.0f / v; }
__device__ inline float quotient(float a, float b) { return a / b; }
__device__ inline Words load_streaming(const Words* p) {
    FourWords v = __builtin_nontemporal_load((const FourWords*)p);
    return {v.x, v.y, v.z, v.w};
}

// A "warp" is 32 neighbouring threads here too: a wave, or half of a wave of 64, whose halves may diverge. Lanes that
// differ in the lower five bits belong to the same half, so both widths give the same result.
__device__ inline u32 wave_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
template <class T>
__device__ inline T shuffle_xor(T v, int mask) {
    static_assert(sizeof(T) == 4, "");
    int bits;
    __builtin_memcpy(&bits, &v, 4);
    bits = __builtin_amdgcn_ds_bpermute((int)((wave_lane() ^ (u32)mask) << 2), bits);
    __builtin_memcpy(&v, &bits, 4);
    return v;
}
__device__ inline void sync_warp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
__device__ inline int warp_sum_int(int v) {
    for (int d = 16; d > 0; d >>= 1) v += shuffle_xor(v, d);
    return v;
}
__device__ inline u32 warp_max_bits(u32 v) {
    for (int d = 16; d > 0; d >>= 1) v = max(v, shuffle_xor(v, d));
    return v;
}

// Launches of a graph do not overlap on AMD, and nothing is prefetched.
__device__ inline void let_next_start() {}
__device__ inline void wait_for_previous() {}
__device__ inline void fetch(const void*, u32) {}
__device__ inline void fetch_ahead(const u8*, u32) {}
