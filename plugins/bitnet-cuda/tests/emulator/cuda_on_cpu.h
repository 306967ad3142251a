// What a kernel source of this plugin needs to be compiled as C++ for the emulator.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "simt.h"

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define threadIdx (simt::Dim{simt::block->current % simt::block->threads.x, 0, 0})
#define blockIdx (simt::block->index)
#define gridDim (simt::block->grid)
using std::max;
using std::min;

inline void __syncthreads() { simt::block->yield(simt::AT_BARRIER); }
inline void __threadfence() {}
inline void sync_warp() { simt::meet(0); }
template <class T>
T shuffle_xor(T value, int mask) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    T other;
    memcpy(&other, simt::meet(bits) + (simt::lane() ^ mask), sizeof other);
    return other;
}
template <class T>
T shuffle_from(T value, unsigned lane) {
    return shuffle_xor(value, simt::lane() ^ lane);
}
inline unsigned atomicAdd(unsigned* p, unsigned n) { return (*p += n) - n; }
inline void atomicMax(unsigned* p, unsigned n) { *p = *p < n ? n : *p; }
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
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned from = selector >> 4 * i & 7;
        result |= ((from < 4 ? a : b) >> from % 4 * 8 & 0xff) << 8 * i;
    }
    return result;
}
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }

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
