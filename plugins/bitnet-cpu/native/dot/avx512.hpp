// Integer products of ternary codes and int8 activations with AVX512-VNNI. A register holds one block of two rows, so
// that both halves multiply the same activations and a row may have an odd number of blocks.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "tiles.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DOT_ROWS = 4;
constexpr uint32_t PANEL_ROWS = 32;
constexpr uint32_t PANEL_TOKENS = 12;

static inline __m512i two_rows(const uint8_t* a, const uint8_t* b) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), 1);
}

static inline __m512i both_halves(const int8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

static inline int32_t sum_i32(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// Transposes one block of 128 columns of 16 rows from `first` on, in three rounds of 8 shuffles: out[j] has byte 4 *
// j.. of each row, columns 4 * j.. of the first plane and of the others.
static inline void transpose_block(const uint8_t* const* rows, uint32_t first, __m512i* out) {
  const __m512i low_lanes = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
  const __m512i high_lanes = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  __m512i a[8], b[8];
  for (uint32_t i = 0; i < 8; ++i) a[i] = two_rows(rows[first + i], rows[first + 8 + i]);
  for (uint32_t i = 0; i < 8; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (uint32_t i = 0; i < 8; i += 4)
    for (uint32_t j = 0; j < 2; ++j) {
      a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
      a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
    }
  for (uint32_t j = 0; j < 8; ++j) out[j] = _mm512_permutex2var_epi64(a[j % 4], j < 4 ? low_lanes : high_lanes, a[4 + j % 4]);
}

// Unpacks one block of 128 columns: out[column / 4][PANEL_ROWS][4] from 32-byte blocks of packed codes.
static inline void unpack_block(const uint8_t* const* rows, uint8_t* out) {
  static_assert(PANEL_ROWS % 16 == 0, "sixteen rows at once");
  const __m512i low2 = _mm512_set1_epi8(0x03);
  for (uint32_t first = 0; first < PANEL_ROWS; first += 16) {
    __m512i codes[8];
    transpose_block(rows, first, codes);
    for (uint32_t j = 0; j < 8; ++j) {
      uint8_t* at = out + (size_t(j) * PANEL_ROWS + first) * 4;
      _mm512_storeu_si512(at, _mm512_and_si512(_mm512_srli_epi16(codes[j], 6), low2));
      _mm512_storeu_si512(at + 32 * PANEL_ROWS, _mm512_and_si512(_mm512_srli_epi16(codes[j], 4), low2));
      _mm512_storeu_si512(at + 64 * PANEL_ROWS, _mm512_and_si512(_mm512_srli_epi16(codes[j], 2), low2));
      _mm512_storeu_si512(at + 96 * PANEL_ROWS, _mm512_and_si512(codes[j], low2));
    }
  }
}

// One token: planes are masked but not shifted (a plane's sums are exactly 1, 4, 16 or 64 times too large), with one
// accumulator each.
static inline void ternary_rows_one(const uint8_t* const* w, const int8_t* q, uint32_t blocks, int32_t* acc) {
  const __m512i m0 = _mm512_set1_epi8(char(0xc0)), m1 = _mm512_set1_epi8(0x30);
  const __m512i m2 = _mm512_set1_epi8(0x0c), m3 = _mm512_set1_epi8(0x03);
  __m512i sums[2][4];
  for (auto& pair : sums)
    for (auto& v : pair) v = _mm512_setzero_si512();
  for (uint32_t b = 0; b < blocks; ++b, q += 128) {
    const size_t at = size_t(b) * 32;
    const __m512i x0 = both_halves(q), x1 = both_halves(q + 32), x2 = both_halves(q + 64), x3 = both_halves(q + 96);
    for (uint32_t pair = 0; pair < 2; ++pair) {
      const uint8_t *a = w[2 * pair] + at, *c = w[2 * pair + 1] + at;
      _mm_prefetch(reinterpret_cast<const char*>(a + AHEAD), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(c + AHEAD), _MM_HINT_T0);
      const __m512i codes = two_rows(a, c);
      sums[pair][0] = _mm512_dpbusd_epi32(sums[pair][0], _mm512_and_si512(codes, m0), x0);
      sums[pair][1] = _mm512_dpbusd_epi32(sums[pair][1], _mm512_and_si512(codes, m1), x1);
      sums[pair][2] = _mm512_dpbusd_epi32(sums[pair][2], _mm512_and_si512(codes, m2), x2);
      sums[pair][3] = _mm512_dpbusd_epi32(sums[pair][3], _mm512_and_si512(codes, m3), x3);
    }
  }
  for (uint32_t pair = 0; pair < 2; ++pair) {
    const __m512i upper = _mm512_add_epi32(_mm512_srai_epi32(sums[pair][0], 6), _mm512_srai_epi32(sums[pair][1], 4));
    const __m512i lower = _mm512_add_epi32(_mm512_srai_epi32(sums[pair][2], 2), sums[pair][3]);
    const __m512i total = _mm512_add_epi32(upper, lower);
    acc[2 * pair] = sum_i32(_mm512_castsi512_si256(total));
    acc[2 * pair + 1] = sum_i32(_mm512_extracti64x4_epi64(total, 1));
  }
}

// Computes 64 columns of a row, and the f32 lanes of their products with one token: sum over the two parts of 32
// columns of s[part] * (sum over the part of code * q). HALF: the first or second 64 columns of a block. Both halves of
// a register hold the block; each masks its own plane without a shift: the scales divide out the powers of two.
constexpr float PLANE_SCALE[4] = {0x1p-6f, 0x1p-4f, 0x1p-2f, 1};
using Codes = __m512i;
using PartScales = __m512;
static inline Codes load_codes(const uint8_t* block) { return both_halves(reinterpret_cast<const int8_t*>(block)); }
static inline PartScales part_scales(const float* s) {
  return _mm512_mask_broadcastss_ps(_mm512_set1_ps(s[0]), 0xff00, _mm_load_ss(s + 1));
}

template <uint32_t HALF>
static inline Vec pair_dot(Codes codes, const int8_t* x, PartScales s) {
  const __m256i low = _mm256_set1_epi8(HALF ? 0x0c : char(0xc0)), high = _mm256_set1_epi8(HALF ? 0x03 : 0x30);
  const __m512i masks = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_and_si512(codes, masks), _mm512_loadu_si512(x));
  return {_mm512_mul_ps(_mm512_cvtepi32_ps(sums), s)};
}

// acc[r * T + t] = sum over all columns of code[r] * q[t]; rows of `blocks` 32-byte blocks, q[t] at q + t * 128 * blocks.
template <uint32_t T>
static inline void ternary_rows(const uint8_t* const* w, const int8_t* q, uint32_t blocks, int32_t* acc) {
  if constexpr (T == 1) {
    ternary_rows_one(w, q, blocks, acc);
  } else {
    const __m512i low2 = _mm512_set1_epi8(0x03);
    const size_t width = size_t(blocks) * 128;
    __m512i sums[2][T];
    for (auto& pair : sums)
      for (auto& v : pair) v = _mm512_setzero_si512();
    for (uint32_t b = 0; b < blocks; ++b) {
      const size_t at = size_t(b) * 32;
      for (uint32_t pair = 0; pair < 2; ++pair) {
        const uint8_t *a = w[2 * pair] + at, *c = w[2 * pair + 1] + at;
        _mm_prefetch(reinterpret_cast<const char*>(a + AHEAD), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(c + AHEAD), _MM_HINT_T0);
        const __m512i codes = two_rows(a, c);
        const __m512i p0 = _mm512_and_si512(_mm512_srli_epi16(codes, 6), low2);
        const __m512i p1 = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low2);
        const __m512i p2 = _mm512_and_si512(_mm512_srli_epi16(codes, 2), low2), p3 = _mm512_and_si512(codes, low2);
        for (uint32_t t = 0; t < T; ++t) {
          const int8_t* x = q + t * width + size_t(b) * 128;
          sums[pair][t] = _mm512_dpbusd_epi32(sums[pair][t], p0, both_halves(x));
          sums[pair][t] = _mm512_dpbusd_epi32(sums[pair][t], p1, both_halves(x + 32));
          sums[pair][t] = _mm512_dpbusd_epi32(sums[pair][t], p2, both_halves(x + 64));
          sums[pair][t] = _mm512_dpbusd_epi32(sums[pair][t], p3, both_halves(x + 96));
        }
      }
    }
    for (uint32_t pair = 0; pair < 2; ++pair)
      for (uint32_t t = 0; t < T; ++t) {
        acc[2 * pair * T + t] = sum_i32(_mm512_castsi512_si256(sums[pair][t]));
        acc[(2 * pair + 1) * T + t] = sum_i32(_mm512_extracti64x4_epi64(sums[pair][t], 1));
      }
  }
}

// acc[t * PANEL_ROWS + r] for a panel of unpacked codes u8[width / 4][PANEL_ROWS][4], q[t] at q + t * stride.
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, size_t stride, uint32_t width, int32_t* acc) {
  __m512i sums[T][2];
  for (auto& token : sums) token[0] = token[1] = _mm512_setzero_si512();
  for (uint32_t k = 0; k < width; k += 4, panel += PANEL_ROWS * 4) {
    const __m512i w0 = _mm512_loadu_si512(panel), w1 = _mm512_loadu_si512(panel + 64);
    for (uint32_t t = 0; t < T; ++t) {
      int32_t four;
      std::memcpy(&four, q + t * stride + k, 4);
      const __m512i x = _mm512_set1_epi32(four);
      sums[t][0] = _mm512_dpbusd_epi32(sums[t][0], w0, x);
      sums[t][1] = _mm512_dpbusd_epi32(sums[t][1], w1, x);
    }
  }
  for (uint32_t t = 0; t < T; ++t) {
    _mm512_storeu_si512(acc + t * PANEL_ROWS, sums[t][0]);
    _mm512_storeu_si512(acc + t * PANEL_ROWS + 16, sums[t][1]);
  }
}

// A panel of matrices with block scales stays packed, so that it fits the L1 cache: out[column / 4][PANEL_ROWS] bytes
// of four planes. A plane of a block is a part of 32 columns; its scale divides out the plane's power of two.
#define BITNET_PACKED_PANEL
static inline void pack_block(const uint8_t* const* rows, uint8_t* out) {
  for (uint32_t first = 0; first < PANEL_ROWS; first += 16) {
    __m512i codes[8];
    transpose_block(rows, first, codes);
    for (uint32_t j = 0; j < 8; ++j) _mm512_storeu_si512(out + (size_t(j) * PANEL_ROWS + first) * 4, codes[j]);
  }
}

// Computes the sums of T tokens over the 32 columns from k on, times the power of two of their plane.
template <uint32_t T>
static inline void panel_part(const uint8_t* panel, uint32_t k, const int8_t* q, size_t stride, __m512 (*out)[2]) {
  const __m512i plane = _mm512_set1_epi8(char(0xc0 >> k / 16 % 8));
  const uint8_t* codes = panel + size_t(k / 128) * 32 * PANEL_ROWS;
  __m512i sums[T][2];
  for (auto& token : sums) token[0] = token[1] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (uint32_t i = 0; i < 32; i += 4, codes += PANEL_ROWS * 4) {
    const __m512i w0 = _mm512_and_si512(_mm512_loadu_si512(codes), plane);
    const __m512i w1 = _mm512_and_si512(_mm512_loadu_si512(codes + 64), plane);
    for (uint32_t t = 0; t < T; ++t) {
      int32_t four;
      std::memcpy(&four, q + t * stride + k + i, 4);
      const __m512i x = _mm512_set1_epi32(four);
      sums[t][0] = _mm512_dpbusd_epi32(sums[t][0], w0, x);
      sums[t][1] = _mm512_dpbusd_epi32(sums[t][1], w1, x);
    }
  }
  for (uint32_t t = 0; t < T; ++t)
    for (uint32_t i = 0; i < 2; ++i) out[t][i] = _mm512_cvtepi32_ps(sums[t][i]);
}

// sums[t * PANEL_ROWS + r] += wscale[r] * (scale[t][0] * codes . q over the 32 columns from k on + scale[t][1] * the
// same over the next 32 + scale[t][2]); scale[t][2] is the contribution of the -1 of the codes. The inner loop of
// block_panel, in registers.
#define BITNET_PANEL_PAIR
constexpr uint32_t BLOCK_TOKENS = 6;  // their sums of both parts fit the registers
template <uint32_t T>
static inline void panel_pair(const uint8_t* panel, uint32_t k, const int8_t* q, size_t stride, const float (*scale)[3],
                              const float* wscale, float* sums) {
  const float *plane = PLANE_SCALE + k / 32 % 4;
  __m512 first[T][2], second[T][2];
  panel_part<T>(panel, k, q, stride, first);
  for (uint32_t t = 0; t < T; ++t)
    for (auto& v : first[t]) v = _mm512_fmadd_ps(v, _mm512_set1_ps(scale[t][0] * plane[0]), _mm512_set1_ps(scale[t][2]));
  panel_part<T>(panel, k + 32, q, stride, second);
  for (uint32_t t = 0; t < T; ++t)
    for (uint32_t i = 0; i < 2; ++i) {
      float* at = sums + t * PANEL_ROWS + i * 16;
      const __m512 pair = _mm512_fmadd_ps(second[t][i], _mm512_set1_ps(scale[t][1] * plane[1]), first[t][i]);
      _mm512_storeu_ps(at, _mm512_fmadd_ps(pair, _mm512_loadu_ps(wscale + i * 16), _mm512_loadu_ps(at)));
    }
}

}  // namespace bitnet::BITNET_PATH
