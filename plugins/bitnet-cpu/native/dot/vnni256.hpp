// Integer products of ternary codes and int8 activations with 256-bit VNNI: u8 x s8 quads added into i32.
// BITNET_DPBUSD(acc, u8, s8) names the intrinsic: AVX-VNNI and AVX512-VNNI + VL spell it differently.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "dot/unpack.hpp"
#include "tiles.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DOT_ROWS = 2;
constexpr uint32_t PANEL_ROWS = 16;
constexpr uint32_t PANEL_TOKENS = 6;

static inline void unpack_block(const uint8_t* const* rows, uint8_t* out) { unpack_rows<PANEL_ROWS, 4>(rows, out); }

static inline __m256i load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

static inline int32_t sum_i32(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// Computes 64 columns of a row, and the f32 lanes of their products with one token: sum over the two parts of 32
// columns of s[part] * (sum over the part of code * q). HALF: the first or second 64 columns of a block. Planes are
// masked but not shifted: their products are too large by powers of two, which the scales divide out.
constexpr float PLANE_SCALE[4] = {0x1p-6f, 0x1p-4f, 0x1p-2f, 1};
using Codes = __m256i;
struct PartScales {
  __m256 first, second;
};
static inline Codes load_codes(const uint8_t* block) { return load_bytes(block); }
static inline PartScales part_scales(const float* s) { return {_mm256_set1_ps(s[0]), _mm256_set1_ps(s[1])}; }

static inline __m256 part_dot(__m256i codes, const int8_t* x) {
  return _mm256_cvtepi32_ps(BITNET_DPBUSD(_mm256_setzero_si256(), codes, load_bytes(x)));
}

template <uint32_t HALF>
static inline Vec pair_dot(Codes codes, const int8_t* x, PartScales s) {
  const __m256i m0 = _mm256_set1_epi8(HALF ? 0x0c : char(0xc0)), m1 = _mm256_set1_epi8(HALF ? 0x03 : 0x30);
  const __m256 first = part_dot(_mm256_and_si256(codes, m0), x), second = part_dot(_mm256_and_si256(codes, m1), x + 32);
  return {_mm256_fmadd_ps(second, s.second, _mm256_mul_ps(first, s.first))};
}

// acc[r * T + t] = sum over all columns of code[r] * q[t]; rows of `blocks` 32-byte blocks, q[t] at q + t * 128 * blocks.
template <uint32_t T>
static inline void ternary_rows(const uint8_t* const* w, const int8_t* q, uint32_t blocks, int32_t* acc) {
  const __m256i low2 = _mm256_set1_epi8(0x03);
  const size_t width = size_t(blocks) * 128;
  __m256i even[DOT_ROWS][T], odd[DOT_ROWS][T];  // two chains hide the instruction's latency
  for (uint32_t r = 0; r < DOT_ROWS; ++r)
    for (uint32_t t = 0; t < T; ++t) even[r][t] = odd[r][t] = _mm256_setzero_si256();
  for (uint32_t b = 0; b < blocks; ++b) {
    const int8_t* x = q + size_t(b) * 128;
    for (uint32_t r = 0; r < DOT_ROWS; ++r) {
      const uint8_t* at = w[r] + size_t(b) * 32;
      _mm_prefetch(reinterpret_cast<const char*>(at + AHEAD), _MM_HINT_T0);
      const __m256i c = load_bytes(at);
      const __m256i p0 = _mm256_and_si256(_mm256_srli_epi16(c, 6), low2);
      const __m256i p1 = _mm256_and_si256(_mm256_srli_epi16(c, 4), low2);
      const __m256i p2 = _mm256_and_si256(_mm256_srli_epi16(c, 2), low2), p3 = _mm256_and_si256(c, low2);
      for (uint32_t t = 0; t < T; ++t) {
        const int8_t* xt = x + t * width;
        even[r][t] = BITNET_DPBUSD(even[r][t], p0, load_bytes(xt));
        odd[r][t] = BITNET_DPBUSD(odd[r][t], p1, load_bytes(xt + 32));
        even[r][t] = BITNET_DPBUSD(even[r][t], p2, load_bytes(xt + 64));
        odd[r][t] = BITNET_DPBUSD(odd[r][t], p3, load_bytes(xt + 96));
      }
    }
  }
  for (uint32_t r = 0; r < DOT_ROWS; ++r)
    for (uint32_t t = 0; t < T; ++t) acc[r * T + t] = sum_i32(_mm256_add_epi32(even[r][t], odd[r][t]));
}

// acc[t * PANEL_ROWS + r] for a panel of unpacked codes u8[width / 4][PANEL_ROWS][4], q[t] at q + t * stride.
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, size_t stride, uint32_t width, int32_t* acc) {
  __m256i sums[T][2];
  for (auto& token : sums) token[0] = token[1] = _mm256_setzero_si256();
  for (uint32_t k = 0; k < width; k += 4, panel += PANEL_ROWS * 4) {
    const __m256i w0 = load_bytes(panel), w1 = load_bytes(panel + 32);
    for (uint32_t t = 0; t < T; ++t) {
      int32_t four;
      std::memcpy(&four, q + t * stride + k, 4);
      const __m256i x = _mm256_set1_epi32(four);
      sums[t][0] = BITNET_DPBUSD(sums[t][0], w0, x);
      sums[t][1] = BITNET_DPBUSD(sums[t][1], w1, x);
    }
  }
  for (uint32_t t = 0; t < T; ++t) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc + t * PANEL_ROWS), sums[t][0]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(acc + t * PANEL_ROWS + 8), sums[t][1]);
  }
}

}  // namespace bitnet::BITNET_PATH
