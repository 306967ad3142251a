// What a kernel source of this plugin needs to be compiled as C++ for the emulator.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "simt.h"

#define CPU_EMULATION
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define threadIdx (simt::Dim{simt::block->current, 0, 0})
#define blockIdx (simt::block->index)
using std::max;
using std::min;

inline void __syncthreads() { simt::block->yield(simt::AT_BARRIER); }
inline void __threadfence() {}
inline void __syncwarp() { simt::meet(0); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    T other;
    memcpy(&other, simt::meet(bits) + (simt::lane() ^ mask), sizeof other);
    return other;
}
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
inline float half_to_float(unsigned short h) { return _cvtsh_ss(h); }
inline unsigned short float_to_half(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
inline unsigned pack_halves(float a, float b) { return float_to_half(a) | (unsigned)float_to_half(b) << 16; }
inline int dot4(unsigned codes, unsigned q, int acc) {
    for (int i = 0; i < 4; i++) acc += (int)(signed char)(codes >> 8 * i) * (signed char)(q >> 8 * i);
    return acc;
}
inline int nearest(float v) { return v == v ? (int)rintf(v) : 0; }
inline float reciprocal(float v) { return 1.0f / v; }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
template <class T>
T load_streaming(const T* p) {
    return *p;
}

// mma.sync m16n8k32 u8.s8.s32 by the fragment layout of the PTX manual.
inline void mma(int* c, const unsigned* a, unsigned b0, unsigned b1) {
    uint64_t low[32], high[32], b[32];
    memcpy(low, simt::meet(a[0] | (uint64_t)a[1] << 32), sizeof low);
    memcpy(high, simt::meet(a[2] | (uint64_t)a[3] << 32), sizeof high);
    memcpy(b, simt::meet(b0 | (uint64_t)b1 << 32), sizeof b);
    unsigned lane = simt::lane();
    for (unsigned j = 0; j < 4; j++) {
        unsigned row = lane / 4 + 8 * (j / 2), column = 2 * (lane % 4) + j % 2;
        for (unsigned k = 0; k < 32; k++) {
            const uint64_t* words = k < 16 ? low : high;
            unsigned from = row % 8 * 4 + k % 16 / 4;
            unsigned char code = words[from] >> (32 * (row / 8) + 8 * (k % 4));
            signed char q = b[column * 4 + k % 16 / 4] >> (32 * (k / 16) + 8 * (k % 4));
            c[j] += code * q;
        }
    }
}

#define DYNAMIC_SHARED(type, name) static type name[SHARED / sizeof(type)]
inline void load_matrices(unsigned* r, const void* row) {
    const unsigned* rows[32];
    memcpy(rows, simt::meet((uint64_t)row), sizeof rows);
    for (unsigned i = 0; i < 4; i++) r[i] = rows[8 * i + simt::lane() / 4][simt::lane() % 4];
}
inline void load_matrices_transposed(unsigned* r, const void* row) {
    const unsigned short* rows[32];
    memcpy(rows, simt::meet((uint64_t)row), sizeof rows);
    unsigned k = 2 * (simt::lane() % 4), n = simt::lane() / 4;
    for (unsigned i = 0; i < 4; i++) r[i] = rows[8 * i + k][n] | (unsigned)rows[8 * i + k + 1][n] << 16;
}
// wgmma m64k32 u8.s8, one warp's 16 rows at a time: tokens in rows of 128 bytes, 16-byte words swizzled by row.
inline void warpgroup_product(int* c, const unsigned* a, const void* tokens, unsigned plane, int count) {
    unsigned g = simt::lane() / 4, t = simt::lane() % 4;
    for (int i = 0; i < count / 8; i++) {
        const unsigned* row = (const unsigned*)tokens + (8 * i + g) * 32;
        mma(c + 4 * i, a, row[(2 * plane ^ g) * 4 + t], row[((2 * plane + 1) ^ g) * 4 + t]);
    }
}
#define warpgroup_mma(c, a, tokens, plane) warpgroup_product(c, a, tokens, plane, TILE_T)
inline void warpgroup_arrive() {}
inline void warpgroup_wait() {}
inline void show_to_tensor_cores() {}
inline unsigned shared_address(const void* p) { return (unsigned)(uintptr_t)p; }

// mma.sync m16n8k16 f16.f16.f32 by the fragment layout of the PTX manual; sums in double.
inline void mma_half(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    uint64_t low[32], high[32], b[32];
    memcpy(low, simt::meet(a[0] | (uint64_t)a[1] << 32), sizeof low);
    memcpy(high, simt::meet(a[2] | (uint64_t)a[3] << 32), sizeof high);
    memcpy(b, simt::meet(b0 | (uint64_t)b1 << 32), sizeof b);
    unsigned lane = simt::lane();
    for (unsigned j = 0; j < 4; j++) {
        unsigned row = lane / 4 + 8 * (j / 2), column = 2 * (lane % 4) + j % 2;
        double sum = c[j];
        for (unsigned k = 0; k < 16; k++) {
            unsigned from = k % 8 / 2, shift = 16 * (k % 2);
            uint64_t x = (k < 8 ? low : high)[row % 8 * 4 + from] >> (32 * (row / 8) + shift);
            uint64_t y = b[column * 4 + from] >> (32 * (k / 8) + shift);
            sum += (double)half_to_float((unsigned short)x) * half_to_float((unsigned short)y);
        }
        c[j] = (float)sum;
    }
}
inline void copy_async_or_zero(void* to, const void* from, bool wanted) {
    wanted ? memcpy(to, from, 16) : memset(to, 0, 16);
}
// At once: a kernel that does not wait for its copies is not found out.
inline void copy_async(void* to, const void* from) { memcpy(to, from, 16); }
inline void copy_async_ahead(void* to, const void* from) { memcpy(to, from, 16); }
inline void copy_group() {}
template <int pending>
void copy_wait() {}

template <auto F>
struct Emulated;
template <class... A, void (*F)(A...)>
struct Emulated<F> {
    template <size_t... I>
    static void call_with(void** a, std::index_sequence<I...>) {
        F(*(A*)a[I]...);
    }
    static void call(void** a) { call_with(a, std::index_sequence_for<A...>{}); }
    static constexpr size_t count = sizeof...(A);
    static constexpr size_t sizes[] = {sizeof(A)...};
};
// emulated_run launches; emulated_sizes tells the driver how to keep arguments of a captured launch.
#define EMULATE(name)                                                                        \
    extern "C" bool emulated_run(void** a, simt::Dim grid, simt::Dim threads) {              \
        return simt::launch(Emulated<name>::call, a, grid, threads);                         \
    }                                                                                        \
    extern "C" const size_t* emulated_sizes(size_t* count) {                                 \
        *count = Emulated<name>::count;                                                      \
        return Emulated<name>::sizes;                                                        \
    }
