// f32 vectors of aarch64 NEON: four lanes.
#pragma once
#include <arm_neon.h>

#include <cmath>
#include <cstdint>

#include "half.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t LANES = 4;

struct Vec {
  float32x4_t v;
};

static inline Vec load(const float* p) { return {vld1q_f32(p)}; }
static inline void store(float* p, Vec a) { vst1q_f32(p, a.v); }
static inline Vec splat(float f) { return {vdupq_n_f32(f)}; }
static inline Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
static inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// One lane of fma.
static inline float fma_one(float a, float b, float c) { return std::fma(a, b, c); }
// min and max return b in lanes with a NaN.
static inline Vec min(Vec a, Vec b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
static inline Vec max(Vec a, Vec b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
static inline Vec abs(Vec a) { return {vabsq_f32(a.v)}; }
// Half to even, for |a| < 2^22.
static inline Vec round(Vec a) { return {vrndnq_f32(a.v)}; }
// 2^n for an integer n in -126..127.
static inline Vec exp2_whole(Vec n) {
  return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v), vdupq_n_s32(127)), 23))};
}
// Returns value, or 0 in lanes with a < b.
static inline Vec clear_below(Vec a, Vec b, Vec value) {
  return {vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value.v), vcltq_f32(a.v, b.v)))};
}
static inline float sum(Vec a) { return vaddvq_f32(a.v); }
// out[i] = sum(a[i])
template <uint32_t N>
static inline void sum_each(const Vec* a, float* out) {
  for (uint32_t i = 0; i < N; ++i) out[i] = sum(a[i]);
}
static inline float largest(Vec a) { return vmaxvq_f32(a.v); }
static inline bool any_greater(Vec a, Vec b) { return vmaxvq_u32(vcgtq_f32(a.v, b.v)) != 0; }
static inline bool any_nan(Vec a) { return vminvq_u32(vceqq_f32(a.v, a.v)) == 0; }
static inline Vec load_f16(const uint8_t* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)))};
}
static inline void store_f16(uint8_t* p, Vec a) { vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(a.v))); }
static inline Vec load_bf16(const uint8_t* p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16))};
}
static inline Vec load_i8(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))))};
}
// float(p[i] - bias)
static inline Vec load_i32(const int32_t* p, int32_t bias) {
  return {vcvtq_f32_s32(vsubq_s32(vld1q_s32(p), vdupq_n_s32(bias)))};
}
// Lanes are integers in -128..127.
static inline void store_i8(int8_t* p, Vec a) {
  const int16x4_t words = vmovn_s32(vcvtq_s32_f32(a.v));
  const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
  const int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
  std::memcpy(p, &four, 4);
}
// WORDS int16 numbers, and int32 sums of their products.
constexpr uint32_t WORDS = 8;
using Words = int16x8_t;
using Ints = int32x4_t;
static inline Words load_words(const int16_t* p) { return vld1q_s16(p); }
static inline Words widen(const int8_t* p) { return vmovl_s8(vld1_s8(p)); }
// Lanes are 16-bit integers.
static inline void store_words(int16_t* p, Vec a) { vst1_s16(p, vmovn_s32(vcvtq_s32_f32(a.v))); }
static inline Ints no_ints() { return vdupq_n_s32(0); }
static inline Ints add_products(Ints sums, Words a, Words b) {
  return vmlal_high_s16(vmlal_s16(sums, vget_low_s16(a), vget_low_s16(b)), a, b);
}
static inline Vec to_f32(Ints a) { return {vcvtq_f32_s32(a)}; }
static inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace bitnet::BITNET_PATH
