// f32 vectors of AVX-512 (F, BW, DQ, VL): sixteen lanes.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "half.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t LANES = 16;

struct Vec {
  __m512 v;
};

static inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
static inline Vec splat(float f) { return {_mm512_set1_ps(f)}; }
static inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// One lane of fma.
static inline float fma_one(float a, float b, float c) { return std::fma(a, b, c); }
// min and max return b in lanes with a NaN.
static inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
// Half to even, for |a| < 2^22.
static inline Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for an integer n in -126..127.
static inline Vec exp2_whole(Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
// Returns value, or 0 in lanes with a < b.
static inline Vec clear_below(Vec a, Vec b, Vec value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), value.v)};
}
static inline float sum(Vec a) {
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
// out[i] = sum(a[i]), in the order of sum.
template <uint32_t N>
static inline void sum_each(const Vec* a, float* out) {
  if constexpr (N == 4) {
    const auto halves = [](__m512 x, __m512 y) {  // lanes of 128 bits: x, x, y, y, added up from two each
      return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    };
    const __m512 xy = halves(a[0].v, a[1].v), zw = halves(a[2].v, a[3].v);
    __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(xy, zw, 0x88), _mm512_shuffle_f32x4(xy, zw, 0xdd));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s)));
  } else {
    for (uint32_t i = 0; i < N; ++i) out[i] = sum(a[i]);
  }
}
static inline float largest(Vec a) { return _mm512_reduce_max_ps(a.v); }
static inline bool any_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
static inline bool any_nan(Vec a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q) != 0; }
static inline Vec load_f16(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store_f16(uint8_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline Vec load_bf16(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
static inline Vec load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// float(p[i] - bias)
static inline Vec load_i32(const int32_t* p, int32_t bias) {
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(bias)))};
}
// Lanes are integers in -128..127.
static inline void store_i8(int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
// WORDS int16 numbers, and int32 sums of their products.
constexpr uint32_t WORDS = 32;
using Words = __m512i;
using Ints = __m512i;
static inline Words load_words(const int16_t* p) { return _mm512_loadu_si512(p); }
static inline Words widen(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
// Lanes are 16-bit integers.
static inline void store_words(int16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
static inline Ints no_ints() { return _mm512_setzero_si512(); }
static inline Ints add_products(Ints sums, Words a, Words b) { return _mm512_dpwssd_epi32(sums, a, b); }
static inline Vec to_f32(Ints a) { return {_mm512_cvtepi32_ps(a)}; }
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace bitnet::BITNET_PATH
