// Integer products of ternary codes and int8 activations with AVX2's u8 x s8 -> i16 pairs.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "dot/unpack.hpp"
#include "tiles.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DOT_ROWS = 4;
constexpr uint32_t PANEL_ROWS = 16;
constexpr uint32_t PANEL_TOKENS = 4;

static inline void unpack_block(const uint8_t* const* rows, uint8_t* out) { unpack_rows<PANEL_ROWS, 4>(rows, out); }

static inline __m256i load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

static inline int32_t sum_i32(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// Computes 64 columns of a row, and the f32 lanes of their products with one token: sum over the two parts of 32
// columns of s[part] * (sum over the part of code * q). HALF: the first or second 64 columns of a block. Planes are
// masked and only partly shifted: their products are too large by powers of two, which the scales divide out.
constexpr float PLANE_SCALE[4] = {0x1p-4f, 0x1p-4f, 0x1p-2f, 1};
using Codes = __m256i;
struct PartScales {
  __m256 first, second;
};
static inline Codes load_codes(const uint8_t* block) { return load_bytes(block); }
static inline PartScales part_scales(const float* s) { return {_mm256_set1_ps(s[0]), _mm256_set1_ps(s[1])}; }

// Pairs are at most 2 * 48 * 128 = 12288, even for the invalid code 3.
static inline __m256 part_dot(__m256i codes, const int8_t* x) {
  const __m256i pairs = _mm256_maddubs_epi16(codes, load_bytes(x));
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <uint32_t HALF>
static inline Vec pair_dot(Codes codes, const int8_t* x, PartScales s) {
  const __m256i m0 = _mm256_set1_epi8(HALF ? 0x0c : 0x30), m1 = _mm256_set1_epi8(HALF ? 0x03 : 0x30);
  const __m256 first = part_dot(_mm256_and_si256(HALF ? codes : _mm256_srli_epi16(codes, 2), m0), x);
  const __m256 second = part_dot(_mm256_and_si256(codes, m1), x + 32);
  return {_mm256_fmadd_ps(second, s.second, _mm256_mul_ps(first, s.first))};
}

// The four planes of a block as 16-bit sums. `high` holds 4 times its planes' products, which saves two shifts per
// block; in 5 blocks it grows to at most 5 * 2 * 2 * 12 * 128 = 30720, even for the invalid code 3.
constexpr uint32_t EXACT_BLOCKS = 5;

// Adds COUNT blocks of one row times T tokens, q[t] at q + t * width, to total[t], multiplied by four.
template <uint32_t T, uint32_t COUNT>
static inline void add_blocks(const uint8_t* w, const int8_t* q, size_t width, __m256i* total) {
  static_assert(COUNT <= EXACT_BLOCKS, "16-bit sums");
  const __m256i low2 = _mm256_set1_epi8(0x03), high2 = _mm256_set1_epi8(0x0c);
  __m256i low[T], high[T];
  for (uint32_t t = 0; t < T; ++t) low[t] = high[t] = _mm256_setzero_si256();
#pragma GCC unroll 5
  for (uint32_t b = 0; b < COUNT; ++b, w += 32, q += 128) {
    if (b % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(w + AHEAD), _MM_HINT_T0);
    const __m256i c = load_bytes(w), upper = _mm256_srli_epi16(c, 4);
    const __m256i planes[4] = {_mm256_and_si256(upper, high2), _mm256_and_si256(upper, low2), _mm256_and_si256(c, high2),
                               _mm256_and_si256(c, low2)};
    for (uint32_t t = 0; t < T; ++t)
      for (uint32_t i = 0; i < 4; ++i) {
        __m256i& sum = i % 2 == 0 ? high[t] : low[t];
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(planes[i], load_bytes(q + t * width + i * 32)));
        asm("" : "+x"(sum));  // GCC 12 would keep a second copy of each sum
      }
  }
  for (uint32_t t = 0; t < T; ++t) {
    const __m256i fours = _mm256_madd_epi16(low[t], _mm256_set1_epi16(4));
    total[t] = _mm256_add_epi32(total[t], _mm256_add_epi32(fours, _mm256_madd_epi16(high[t], _mm256_set1_epi16(1))));
  }
}

// acc[r * T + t] for R rows: a few blocks of each row in turns, so that loads of one row overlap with products of
// others.
template <uint32_t T, uint32_t R>
static inline void side_by_side(const uint8_t* const* rows, const int8_t* q, uint32_t blocks, int32_t* acc) {
  const size_t width = size_t(blocks) * 128;
  __m256i total[R][T];
  for (auto& row : total)
    for (auto& v : row) v = _mm256_setzero_si256();
  uint32_t b = 0;
  for (; b + EXACT_BLOCKS <= blocks; b += EXACT_BLOCKS)
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; ++r)
      add_blocks<T, EXACT_BLOCKS>(rows[r] + size_t(b) * 32, q + size_t(b) * 128, width, total[r]);
  for (; b < blocks; ++b)
    for (uint32_t r = 0; r < R; ++r) add_blocks<T, 1>(rows[r] + size_t(b) * 32, q + size_t(b) * 128, width, total[r]);
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t t = 0; t < T; ++t) acc[r * T + t] = sum_i32(_mm256_srai_epi32(total[r][t], 2));
}

// acc[r * T + t] = sum over all columns of code[r] * q[t]; rows of `blocks` 32-byte blocks, q[t] at q + t * 128 *
// blocks. The sums of all rows for more than two tokens do not fit the registers.
template <uint32_t T>
static inline void ternary_rows(const uint8_t* const* rows, const int8_t* q, uint32_t blocks, int32_t* acc) {
  if constexpr (T <= 2) return side_by_side<T, DOT_ROWS>(rows, q, blocks, acc);
  for (uint32_t r = 0; r < DOT_ROWS; ++r) side_by_side<T, 1>(rows + r, q, blocks, acc + r * T);
}

// Adds the products of one token with 16 rows: i16 pairs of two columns each.
struct PanelSums {
  __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();

  void add(__m256i w0, __m256i w1, const int8_t* q) {
    int32_t four;
    std::memcpy(&four, q, 4);
    const __m256i x = _mm256_set1_epi32(four);
    low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w0, x));
    high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w1, x));
    asm("" : "+x"(low), "+x"(high));  // GCC 12 would keep a second copy of each sum, on the stack
  }

  void flush(int32_t* acc, bool add) const {
    const __m256i ones = _mm256_set1_epi16(1);
    auto* at = reinterpret_cast<__m256i*>(acc);
    const __m256i a = _mm256_madd_epi16(low, ones), b = _mm256_madd_epi16(high, ones);
    _mm256_storeu_si256(at, add ? _mm256_add_epi32(_mm256_loadu_si256(at), a) : a);
    _mm256_storeu_si256(at + 1, add ? _mm256_add_epi32(_mm256_loadu_si256(at + 1), b) : b);
  }
};

// acc[t * PANEL_ROWS + r] for a panel of unpacked codes u8[width / 4][PANEL_ROWS][4], q[t] at q + t * stride. 16-bit
// sums are exact for the 128 columns between two flushes: 32 * 2 * 3 * 128 = 24576.
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, size_t stride, uint32_t width, int32_t* acc) {
  static_assert(T == 1 || T == PANEL_TOKENS, "one token or four");
  const int8_t* q3 = q + 3 * stride;
  for (uint32_t first = 0; first < width; first += 128) {
    PanelSums s0, s1, s2, s3;
    const uint32_t last = width - first < 128 ? width - first : 128;
    for (uint32_t k = 0; k < last; k += 16) {
      for (uint32_t i = 0; i < 16; i += 4, panel += PANEL_ROWS * 4) {  // unrolled: instructions are the bottleneck
        const __m256i w0 = load_bytes(panel), w1 = load_bytes(panel + 32);
        s0.add(w0, w1, q + i);
        if constexpr (T > 1) {
          s1.add(w0, w1, q + stride + i);
          s2.add(w0, w1, q + 2 * stride + i);
          s3.add(w0, w1, q3 + i);
        }
      }
      q += 16;
      q3 += 16;
    }
    const bool add = first != 0;
    s0.flush(acc, add);
    if constexpr (T > 1) {
      s1.flush(acc + PANEL_ROWS, add);
      s2.flush(acc + 2 * PANEL_ROWS, add);
      s3.flush(acc + 3 * PANEL_ROWS, add);
    }
  }
}

// Computes the sums of T tokens over 32 columns of a panel.
template <uint32_t T>
static inline void panel_part(const uint8_t* panel, const int8_t* q, size_t stride, __m256 (*out)[2]) {
  PanelSums s[T];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < 32; i += 4, panel += PANEL_ROWS * 4) {
    const __m256i w0 = load_bytes(panel), w1 = load_bytes(panel + 32);
    for (uint32_t t = 0; t < T; ++t) s[t].add(w0, w1, q + t * stride + i);
  }
  const __m256i ones = _mm256_set1_epi16(1);
  for (uint32_t t = 0; t < T; ++t) {
    out[t][0] = _mm256_cvtepi32_ps(_mm256_madd_epi16(s[t].low, ones));
    out[t][1] = _mm256_cvtepi32_ps(_mm256_madd_epi16(s[t].high, ones));
  }
}

// sums[t * PANEL_ROWS + r] += wscale[r] * (scale[t][0] * codes . q over the 32 columns from k on + scale[t][1] * the
// same over the next 32 + scale[t][2]); scale[t][2] is the contribution of the -1 of the codes. The inner loop of
// block_panel, in registers.
#define BITNET_PANEL_PAIR
constexpr uint32_t BLOCK_TOKENS = PANEL_TOKENS;
template <uint32_t T>
static inline void panel_pair(const uint8_t* panel, uint32_t k, const int8_t* q, size_t stride, const float (*scale)[3],
                              const float* wscale, float* sums) {
  panel += size_t(k) * PANEL_ROWS;
  q += k;
  __m256 first[T][2], second[T][2];
  panel_part<T>(panel, q, stride, first);
  for (uint32_t t = 0; t < T; ++t)
    for (auto& v : first[t]) v = _mm256_fmadd_ps(v, _mm256_set1_ps(scale[t][0]), _mm256_set1_ps(scale[t][2]));
  panel_part<T>(panel + 32 * PANEL_ROWS, q + 32, stride, second);
  for (uint32_t t = 0; t < T; ++t)
    for (uint32_t i = 0; i < 2; ++i) {
      float* at = sums + t * PANEL_ROWS + i * 8;
      const __m256 pair = _mm256_fmadd_ps(second[t][i], _mm256_set1_ps(scale[t][1]), first[t][i]);
      _mm256_storeu_ps(at, _mm256_fmadd_ps(pair, _mm256_loadu_ps(wscale + i * 8), _mm256_loadu_ps(at)));
    }
}

}  // namespace bitnet::BITNET_PATH
