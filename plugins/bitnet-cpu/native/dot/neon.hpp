// Integer products of ternary codes and int8 activations with NEON; with the dot product and int8 matrix extensions if
// the path has them.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "dot/unpack.hpp"
#include "tiles.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DOT_ROWS = 2;
#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr uint32_t PANEL_ROWS = 8;
constexpr uint32_t PANEL_TOKENS = 8;
constexpr uint32_t PANEL_STEP = 8;  // consecutive columns of a row
#else
constexpr uint32_t PANEL_ROWS = 16;
constexpr uint32_t PANEL_TOKENS = 6;
constexpr uint32_t PANEL_STEP = 4;
#endif

static inline void unpack_block(const uint8_t* const* rows, uint8_t* out) {
  unpack_rows<PANEL_ROWS, PANEL_STEP>(rows, out);
}

struct Sums {
#ifdef __ARM_FEATURE_DOTPROD
  int32x4_t total = vdupq_n_s32(0);
  void add(int8x16_t w, int8x16_t x) { total = vdotq_s32(total, w, x); }
  void flush() {}
#else
  int32x4_t total = vdupq_n_s32(0);
  int16x8_t part = vdupq_n_s16(0);  // a block adds at most 16 * 3 * 128 = 6144 to a lane
  void add(int8x16_t w, int8x16_t x) {
    part = vmlal_s8(part, vget_low_s8(w), vget_low_s8(x));
    part = vmlal_high_s8(part, w, x);
  }
  void flush() {
    total = vpadalq_s16(total, part);
    part = vdupq_n_s16(0);
  }
#endif
};

// Computes 64 columns of a row, and the f32 lanes of their products with one token: sum over the two parts of 32
// columns of s[part] * (sum over the part of code * q). HALF: the first or second 64 columns of a block. Only the first
// plane, whose bytes would be negative, is shifted: the scales divide out the others' powers of two.
constexpr float PLANE_SCALE[4] = {1, 0x1p-4f, 0x1p-2f, 1};
using Codes = uint8x16x2_t;
using PartScales = const float*;
static inline Codes load_codes(const uint8_t* block) { return {{vld1q_u8(block), vld1q_u8(block + 16)}}; }
static inline PartScales part_scales(const float* s) { return s; }

static inline float32x4_t part_dot(uint8x16_t low, uint8x16_t high, const int8_t* x) {
  Sums sums;
  sums.add(vreinterpretq_s8_u8(low), vld1q_s8(x));
  sums.add(vreinterpretq_s8_u8(high), vld1q_s8(x + 16));
  sums.flush();
  return vcvtq_f32_s32(sums.total);
}

template <uint32_t HALF>
static inline Vec pair_dot(Codes c, const int8_t* x, PartScales s) {
  const uint8x16_t m0 = vdupq_n_u8(0x0c), m1 = vdupq_n_u8(HALF ? 0x03 : 0x30);
  const float32x4_t first = HALF ? part_dot(vandq_u8(c.val[0], m0), vandq_u8(c.val[1], m0), x)
                                 : part_dot(vshrq_n_u8(c.val[0], 6), vshrq_n_u8(c.val[1], 6), x);
  const float32x4_t second = part_dot(vandq_u8(c.val[0], m1), vandq_u8(c.val[1], m1), x + 32);
  return {vfmaq_n_f32(vmulq_n_f32(first, s[0]), second, s[1])};
}

// acc[r * T + t] = sum over all columns of code[r] * q[t]; rows of `blocks` 32-byte blocks, q[t] at q + t * 128 * blocks.
template <uint32_t T>
static inline void ternary_rows(const uint8_t* const* w, const int8_t* q, uint32_t blocks, int32_t* acc) {
  const uint8x16_t low2 = vdupq_n_u8(3);
  const size_t width = size_t(blocks) * 128;
  Sums sums[DOT_ROWS][T];
  for (uint32_t b = 0; b < blocks; ++b)
    for (uint32_t r = 0; r < DOT_ROWS; ++r) {
      const uint8_t* at = w[r] + size_t(b) * 32;
      __builtin_prefetch(at + AHEAD);
      for (uint32_t half = 0; half < 2; ++half) {
        const uint8x16_t c = vld1q_u8(at + 16 * half);
        const int8x16_t p0 = vreinterpretq_s8_u8(vshrq_n_u8(c, 6));
        const int8x16_t p1 = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(c, 4), low2));
        const int8x16_t p2 = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(c, 2), low2));
        const int8x16_t p3 = vreinterpretq_s8_u8(vandq_u8(c, low2));
        for (uint32_t t = 0; t < T; ++t) {
          const int8_t* x = q + t * width + size_t(b) * 128 + 16 * half;
          sums[r][t].add(p0, vld1q_s8(x));
          sums[r][t].add(p1, vld1q_s8(x + 32));
          sums[r][t].add(p2, vld1q_s8(x + 64));
          sums[r][t].add(p3, vld1q_s8(x + 96));
        }
      }
      for (uint32_t t = 0; t < T; ++t) sums[r][t].flush();
    }
  for (uint32_t r = 0; r < DOT_ROWS; ++r)
    for (uint32_t t = 0; t < T; ++t) acc[r * T + t] = vaddvq_s32(sums[r][t].total);
}

#ifdef __ARM_FEATURE_MATMUL_INT8
// acc[t * PANEL_ROWS + r] for a panel of unpacked codes u8[width / 8][PANEL_ROWS][8], q[t] at q + t * stride. A
// register of sums holds two rows of two tokens; the last of an odd number of tokens takes both places.
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, size_t stride, uint32_t width, int32_t* acc) {
  constexpr uint32_t PAIRS = (T + 1) / 2;
  int32x4_t sums[PAIRS][PANEL_ROWS / 2];
  for (auto& pair : sums)
    for (auto& v : pair) v = vdupq_n_s32(0);
  for (uint32_t k = 0; k < width; k += 8, panel += PANEL_ROWS * 8) {
    for (uint32_t i = 0; i < PAIRS; ++i) {
      const int8_t* x = q + 2 * i * stride + k;
      const int8x16_t tokens = vcombine_s8(vld1_s8(x), vld1_s8(2 * i + 1 < T ? x + stride : x));
      for (uint32_t r = 0; r < PANEL_ROWS / 2; ++r)
        sums[i][r] = vmmlaq_s32(sums[i][r], tokens, vreinterpretq_s8_u8(vld1q_u8(panel + 16 * r)));
    }
  }
  for (uint32_t i = 0; i < PAIRS; ++i)
    for (uint32_t r = 0; r < PANEL_ROWS / 2; ++r) {
      int32_t* at = acc + 2 * i * PANEL_ROWS + 2 * r;
      vst1_s32(at, vget_low_s32(sums[i][r]));
      if (2 * i + 1 < T) vst1_s32(at + PANEL_ROWS, vget_high_s32(sums[i][r]));
    }
}
#elif defined(__ARM_FEATURE_DOTPROD)
// acc[t * PANEL_ROWS + r] for a panel of unpacked codes u8[width / 4][PANEL_ROWS][4], q[t] at q + t * stride.
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, size_t stride, uint32_t width, int32_t* acc) {
  int32x4_t sums[T][4];
  for (auto& token : sums)
    for (auto& v : token) v = vdupq_n_s32(0);
  for (uint32_t k = 0; k < width; k += 4, panel += PANEL_ROWS * 4) {
    for (uint32_t t = 0; t < T; ++t) {
      int32_t four;
      std::memcpy(&four, q + t * stride + k, 4);
      const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four));
      for (uint32_t i = 0; i < 4; ++i)
        sums[t][i] = vdotq_s32(sums[t][i], vreinterpretq_s8_u8(vld1q_u8(panel + 16 * i)), x);
    }
  }
  for (uint32_t t = 0; t < T; ++t)
    for (uint32_t i = 0; i < 4; ++i) vst1q_s32(acc + t * PANEL_ROWS + 4 * i, sums[t][i]);
}
#else
// The same without the extension: 16-bit sums of 128 columns (32 * 3 * 128 = 12288), four lanes per row.
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, size_t stride, uint32_t width, int32_t* acc) {
  for (uint32_t first = 0; first < width; first += 128, panel += PANEL_ROWS * 128) {
    const uint32_t last = width - first < 128 ? width - first : 128;
    for (uint32_t pair = 0; pair < PANEL_ROWS / 2; ++pair) {
      int16x8_t part[T];
      for (auto& v : part) v = vdupq_n_s16(0);
      for (uint32_t k = 0; k < last; k += 4) {
        const int8x8_t w = vreinterpret_s8_u8(vld1_u8(panel + PANEL_ROWS * k + 8 * pair));
        for (uint32_t t = 0; t < T; ++t) {
          int32_t four;
          std::memcpy(&four, q + t * stride + first + k, 4);
          part[t] = vmlal_s8(part[t], w, vreinterpret_s8_s32(vdup_n_s32(four)));
        }
      }
      for (uint32_t t = 0; t < T; ++t) {
        int32_t* at = acc + t * PANEL_ROWS + 2 * pair;
        const int32x2_t sums = vmovn_s64(vpaddlq_s32(vpaddlq_s16(part[t])));
        vst1_s32(at, first ? vadd_s32(vld1_s32(at), sums) : sums);
      }
    }
  }
}
#endif

}  // namespace bitnet::BITNET_PATH
