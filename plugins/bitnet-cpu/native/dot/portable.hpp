// Integer products of ternary codes and int8 activations in plain C++.
#pragma once
#include <cstdint>

#include "dot/unpack.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DOT_ROWS = 1;     // matrix rows that ternary_rows takes at once
constexpr uint32_t PANEL_ROWS = 8;   // matrix rows of a panel
constexpr uint32_t PANEL_TOKENS = 6;  // tokens that panel_tokens takes at once

static inline void unpack_block(const uint8_t* const* rows, uint8_t* out) { unpack_rows<PANEL_ROWS, 4>(rows, out); }

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

// acc[t * PANEL_ROWS + r] for a panel of unpacked codes u8[width / 4][PANEL_ROWS][4].
template <uint32_t T>
static inline void panel_tokens(const uint8_t* panel, const int8_t* q, uint32_t width, int32_t* acc) {
  for (uint32_t i = 0; i < T * PANEL_ROWS; ++i) acc[i] = 0;
  for (uint32_t k = 0; k < width; k += 4, panel += PANEL_ROWS * 4) {
    for (uint32_t t = 0; t < T; ++t) {
      const int8_t* x = q + size_t(t) * width + k;
      for (uint32_t r = 0; r < PANEL_ROWS; ++r) {
        const uint8_t* c = panel + 4 * r;
        acc[t * PANEL_ROWS + r] += c[0] * x[0] + c[1] * x[1] + c[2] * x[2] + c[3] * x[3];
      }
    }
  }
}

}  // namespace bitnet::BITNET_PATH
