// f32 vectors of AVX2 + FMA + F16C: eight lanes.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "half.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t LANES = 8;

struct Vec {
  __m256 v;
};

static inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
static inline Vec splat(float f) { return {_mm256_set1_ps(f)}; }
static inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// One lane of fma.
static inline float fma_one(float a, float b, float c) { return std::fma(a, b, c); }
// min and max return b in lanes with a NaN.
static inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
// Half to even, for |a| < 2^22.
static inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for an integer n in -126..127.
static inline Vec exp2_whole(Vec n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}
// Returns value, or 0 in lanes with a < b.
static inline Vec clear_below(Vec a, Vec b, Vec value) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ), value.v)};
}
static inline float sum(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
// out[i] = sum(a[i]), in the order of sum.
template <uint32_t N>
static inline void sum_each(const Vec* a, float* out) {
  if constexpr (N == 4) {
    const auto halves = [](__m256 x, __m256 y) {  // lanes of 128 bits: x, y, each added up from two
      return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    };
    const __m256 xy = halves(a[0].v, a[1].v), zw = halves(a[2].v, a[3].v);
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(xy, zw, 0x44), _mm256_shuffle_ps(xy, zw, 0xee));
    s = _mm256_add_ps(s, _mm256_movehdup_ps(s));
    const __m128 xzyw = _mm_shuffle_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1), 0x88);
    _mm_storeu_ps(out, _mm_shuffle_ps(xzyw, xzyw, 0xd8));
  } else {
    for (uint32_t i = 0; i < N; ++i) out[i] = sum(a[i]);
  }
}
static inline float largest(Vec a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline bool any_greater(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0; }
static inline bool any_nan(Vec a) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)) != 0; }
static inline Vec load_f16(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static inline void store_f16(uint8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline Vec load_bf16(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
static inline Vec load_i8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
// float(p[i] - bias)
static inline Vec load_i32(const int32_t* p, int32_t bias) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_sub_epi32(v, _mm256_set1_epi32(bias)))};
}
// Lanes are integers in -128..127.
static inline void store_i8(int8_t* p, Vec a) {
  const __m256i i = _mm256_cvtps_epi32(a.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
// WORDS int16 numbers, and int32 sums of their products.
constexpr uint32_t WORDS = 16;
using Words = __m256i;
using Ints = __m256i;
static inline Words load_words(const int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline Words widen(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
// Lanes are 16-bit integers.
static inline void store_words(int16_t* p, Vec a) {
  const __m256i i = _mm256_cvtps_epi32(a.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
}
static inline Ints no_ints() { return _mm256_setzero_si256(); }
static inline Ints add_products(Ints sums, Words a, Words b) { return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)); }
static inline Vec to_f32(Ints a) { return {_mm256_cvtepi32_ps(a)}; }
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace bitnet::BITNET_PATH
