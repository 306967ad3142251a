// What HIP C++ means when a kernel of this plugin is compiled for the CPU: what hipRTC knows by itself, and AMD's builtins.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "simt.h"

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define threadIdx (simt::Dim{simt::block->current, 0, 0})
#define blockIdx (simt::block->index)
#define gridDim (simt::block->grid)
using std::max;
using std::min;

inline void __syncthreads() { simt::block->yield(simt::AT_BARRIER); }
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* p, unsigned n) { return (*p += n) - n; }
inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }

// The builtins that vendor.cuh uses. A shuffle may only name a lane of its own half of a wave: the other may be elsewhere.
inline unsigned wave_size() {
    const char* gfx = getenv("HIP_ON_CPU_GFX");
    return gfx && !strncmp(gfx, "gfx9", 4) ? 64 : 32;
}
inline const unsigned WAVE = wave_size();
inline unsigned emulated_lane() { return simt::block->current % WAVE; }
inline int emulated_permute(int address, int value) {
    unsigned from = (unsigned)address / 4;
    const uint64_t* values = simt::meet((unsigned)value);
    if (from / 32 != emulated_lane() / 32) simt::fail();
    return (int)values[from % 32];
}
inline int emulated_dot4(int a, int b, int acc) {
    for (int i = 0; i < 32; i += 8) acc += (int)(signed char)(a >> i) * (int)(signed char)(b >> i);
    return acc;
}
#define __builtin_amdgcn_mbcnt_lo(mask, base) (base)
#define __builtin_amdgcn_mbcnt_hi(mask, base) ((base) + emulated_lane())
#define __builtin_amdgcn_ds_bpermute(address, value) emulated_permute(address, value)
#define __builtin_amdgcn_sdot4(a, b, acc, clamp) emulated_dot4(a, b, acc)
#define __builtin_amdgcn_sudot4(a_signed, a, b_signed, b, acc, clamp) emulated_dot4(a, b, acc)
#define __builtin_amdgcn_fence(order, scope) ((void)0)
#define __builtin_amdgcn_wave_barrier() simt::meet(0)

#include "matrix_on_cpu.h"

template <auto F>
struct Emulated;
template <class... A, void (*F)(A...)>
struct Emulated<F> {
    template <size_t... I>
    static void call_with(void** a, std::index_sequence<I...>) {
        F(*(A*)a[I]...);
    }
    static void call(void** a) { call_with(a, std::index_sequence_for<A...>{}); }
    // Arguments packed one behind the other, each aligned to its size.
    static bool run(char* packed, simt::Dim grid, simt::Dim threads) {
        void* pointers[sizeof...(A)];
        size_t at = 0, i = 0;
        ((at = (at + alignof(A) - 1) / alignof(A) * alignof(A), pointers[i++] = packed + at, at += sizeof(A)), ...);
        return simt::launch(call, pointers, grid, threads);
    }
};
#define EMULATE(name)                                                                  \
    extern "C" bool emulated_##name(char* packed, simt::Dim grid, simt::Dim threads) { \
        return Emulated<name>::run(packed, grid, threads);                             \
    }
