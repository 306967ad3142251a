// f32 vectors in plain C++: eight lanes that a compiler may map to the baseline instruction set.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t LANES = 8;

struct Vec {
  float v[LANES];
};

template <class F>
static inline Vec each(F f) {
  Vec r;
  for (uint32_t i = 0; i < LANES; ++i) r.v[i] = f(i);
  return r;
}

static inline Vec load(const float* p) {
  Vec r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void store(float* p, Vec a) { std::memcpy(p, a.v, sizeof a.v); }
static inline Vec splat(float f) {
  return each([&](uint32_t) { return f; });
}
static inline Vec operator+(Vec a, Vec b) {
  return each([&](uint32_t i) { return a.v[i] + b.v[i]; });
}
static inline Vec operator-(Vec a, Vec b) {
  return each([&](uint32_t i) { return a.v[i] - b.v[i]; });
}
static inline Vec operator*(Vec a, Vec b) {
  return each([&](uint32_t i) { return a.v[i] * b.v[i]; });
}
static inline Vec operator/(Vec a, Vec b) {
  return each([&](uint32_t i) { return a.v[i] / b.v[i]; });
}
static inline Vec fma(Vec a, Vec b, Vec c) {
  return each([&](uint32_t i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// One lane of fma.
static inline float fma_one(float a, float b, float c) { return a * b + c; }
// min and max return b in lanes with a NaN.
static inline Vec min(Vec a, Vec b) {
  return each([&](uint32_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static inline Vec max(Vec a, Vec b) {
  return each([&](uint32_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline Vec abs(Vec a) {
  return each([&](uint32_t i) { return std::fabs(a.v[i]); });
}
// Half to even, for |a| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
static inline Vec round(Vec a) {
  return each([&](uint32_t i) { return (a.v[i] + 0x1.8p23f) - 0x1.8p23f; });
}
// 2^n for an integer n in -126..127.
static inline Vec exp2_whole(Vec n) {
  return each([&](uint32_t i) { return bits_to_float(uint32_t(int32_t(n.v[i]) + 127) << 23); });
}
// Returns value, or 0 in lanes with a < b.
static inline Vec clear_below(Vec a, Vec b, Vec value) {
  return each([&](uint32_t i) { return a.v[i] < b.v[i] ? 0.0f : value.v[i]; });
}
static inline float sum(Vec a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
// out[i] = sum(a[i])
template <uint32_t N>
static inline void sum_each(const Vec* a, float* out) {
  for (uint32_t i = 0; i < N; ++i) out[i] = sum(a[i]);
}
static inline float largest(Vec a) {
  float m = a.v[0];
  for (uint32_t i = 1; i < LANES; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
static inline bool any_greater(Vec a, Vec b) {
  for (uint32_t i = 0; i < LANES; ++i)
    if (a.v[i] > b.v[i]) return true;
  return false;
}
static inline bool any_nan(Vec a) {
  for (uint32_t i = 0; i < LANES; ++i)
    if (a.v[i] != a.v[i]) return true;
  return false;
}
static inline Vec load_f16(const uint8_t* p) {
  return each([&](uint32_t i) { return half_to_float(load_u16(p + 2 * i)); });
}
static inline void store_f16(uint8_t* p, Vec a) {
  for (uint32_t i = 0; i < LANES; ++i) {
    const uint16_t h = float_to_half(a.v[i]);
    std::memcpy(p + 2 * i, &h, 2);
  }
}
static inline Vec load_bf16(const uint8_t* p) {
  return each([&](uint32_t i) { return bf16_to_float(load_u16(p + 2 * i)); });
}
static inline Vec load_i8(const int8_t* p) {
  return each([&](uint32_t i) { return float(p[i]); });
}
// float(p[i] - bias)
static inline Vec load_i32(const int32_t* p, int32_t bias) {
  return each([&](uint32_t i) { return float(p[i] - bias); });
}
// Lanes are integers in -128..127.
static inline void store_i8(int8_t* p, Vec a) {
  for (uint32_t i = 0; i < LANES; ++i) p[i] = int8_t(int32_t(a.v[i]));
}
// WORDS int16 numbers, and int32 sums of their products.
constexpr uint32_t WORDS = LANES;
struct Words {
  int16_t v[WORDS];
};
struct Ints {
  int32_t v[LANES];
};
static inline Words load_words(const int16_t* p) {
  Words r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline Words widen(const int8_t* p) {
  Words r;
  for (uint32_t i = 0; i < WORDS; ++i) r.v[i] = p[i];
  return r;
}
// Lanes are 16-bit integers.
static inline void store_words(int16_t* p, Vec a) {
  for (uint32_t i = 0; i < LANES; ++i) p[i] = int16_t(int32_t(a.v[i]));
}
static inline Ints no_ints() { return {}; }
static inline Ints add_products(Ints sums, Words a, Words b) {
  for (uint32_t i = 0; i < WORDS; ++i) sums.v[i] += int32_t(a.v[i]) * b.v[i];
  return sums;
}
static inline Vec to_f32(Ints a) {
  return each([&](uint32_t i) { return float(a.v[i]); });
}
static inline void prefetch(const void*) {}

}  // namespace bitnet::BITNET_PATH
