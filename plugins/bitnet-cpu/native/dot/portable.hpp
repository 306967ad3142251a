// Integer products of ternary codes and int8 activations in plain C++.
#pragma once
#include <cstdint>

#include "dot/unpack.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DOT_ROWS = 1;     // matrix rows that ternary_rows processes at once
constexpr uint32_t PANEL_ROWS = 8;   // matrix rows of a panel
constexpr uint32_t PANEL_TOKENS = 6;  // tokens that panel_tokens processes at once

static inline void unpack_block(const uint8_t* const* rows, uint8_t* out) { unpack_rows<PANEL_ROWS, 4>(rows, out); }

// Computes 64 columns of a row, and the f32 lanes of their products with one token: sum over the two parts of 32
// columns of s[part] * (sum over the part of code * q). HALF: the first or second 64 columns of a block.
constexpr float PLANE_SCALE[4] = {1, 1, 1, 1};  // factors that part_scales must divide out
using Codes = const uint8_t*;
using PartScales = const float*;
static inline Codes load_codes(const uint8_t* block) { return block; }
static inline PartScales part_scales(const float* s) { return s; }

template <uint32_t HALF>
static inline Vec pair_dot(Codes codes, const int8_t* x, PartScales s) {
  constexpr uint32_t FIRST = 6 - 4 * HALF, SECOND = FIRST - 2;
  return each([&](uint32_t lane) {
    int32_t first = 0, second = 0;
    for (uint32_t i = lane * 4; i < lane * 4 + 4; ++i) {
      first += (codes[i] >> FIRST & 3) * x[i];
      second += (codes[i] >> SECOND & 3) * x[32 + i];
    }
    return float(first) * s[0] + float(second) * s[1];
  });
}

// acc[r * T + t] = sum over all columns of code[r] * q[t]; rows of `blocks` 32-byte blocks, q[t] at q + t * 128 * blocks.
template <uint32_t T>
static inline void ternary_rows(const uint8_t* const* w, const int8_t* q, uint32_t blocks, int32_t* acc) {
  for (uint32_t t = 0; t < T; ++t) {
    const int8_t* x = q + size_t(t) * blocks * 128;
    int32_t total = 0;
    for (uint32_t b = 0; b < blocks; ++b, x += 128) {
      const uint8_t* c = w[0] + size_t(b) * 32;
      for (uint32_t i = 0; i < 32; ++i) {
        total += (c[i] >> 6) * x[i] + (c[i] >> 4 & 3) * x[32 + i] + (c[i] >> 2 & 3) * x[64 + i] + (c[i] & 3) * x[96 + i];
      }
    }
    acc[t] = total;
  }
}

// acc[t * PANEL_ROWS + r] for a panel of unpacked codes u8[width / 4][PANEL_ROWS][4], q[t] at q + t * stride.
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, size_t stride, uint32_t width, int32_t* acc) {
  for (uint32_t i = 0; i < T * PANEL_ROWS; ++i) acc[i] = 0;
  for (uint32_t k = 0; k < width; k += 4, panel += PANEL_ROWS * 4) {
    for (uint32_t t = 0; t < T; ++t) {
      const int8_t* x = q + t * stride + k;
      for (uint32_t r = 0; r < PANEL_ROWS; ++r) {
        const uint8_t* c = panel + 4 * r;
        acc[t * PANEL_ROWS + r] += c[0] * x[0] + c[1] * x[1] + c[2] * x[2] + c[3] * x[3];
      }
    }
  }
}

}  // namespace bitnet::BITNET_PATH
