// Products of a panel with AMX tiles: C[16 tokens][16 rows] += A[16 tokens][64 columns] B[64 columns][16 rows], s8 x u8
// into i32. A: activations as stored; B: a panel of unpacked codes. A few tokens use the functions of AVX512-VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "dot/avx512.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t TILE_TOKENS = 32;  // two tiles of tokens and two of rows: 4 sums, 2 + 2 operands

// The operand of ldtilecfg. Tiles 0 to 3: sums; 4, 5: tokens; 6, 7: rows.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

// Configures the tiles for `first` (1 to 16) and `second` (0 to 16) tokens.
static inline void shape_tiles(uint32_t first, uint32_t second) {
  TileShapes shapes;
  const uint32_t rows[8] = {first, first, second, second, first, second, 16, 16};
  for (uint32_t i = 0; i < 8; ++i) {
    shapes.rows[i] = uint8_t(rows[i]);
    if (rows[i] == 0) shapes.row_bytes[i] = 0;
  }
  asm volatile("" ::: "memory");  // the intrinsic does not tell GCC that it reads all of the memory
  _tile_loadconfig(&shapes);
}

// acc[t * PANEL_ROWS + r] for the tokens that the tiles are configured for.
template <bool SECOND>
static inline void tile_tokens(const uint8_t* panel, const int8_t* q, uint32_t width, int32_t* acc) {
  static_assert(PANEL_ROWS == 32, "two tiles of rows");
  constexpr size_t B_STRIDE = PANEL_ROWS * 4;
  const int8_t* q16 = q + size_t(16) * width;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (SECOND) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (uint32_t k = 0; k < width; k += 64, panel += 16 * B_STRIDE) {
    _tile_loadd(6, panel, B_STRIDE);
    _tile_loadd(4, q + k, width);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, panel + 64, B_STRIDE);
    _tile_dpbsud(1, 4, 7);
    if constexpr (SECOND) {
      _tile_loadd(5, q16 + k, width);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, acc, B_STRIDE);
  _tile_stored(1, acc + 16, B_STRIDE);
  if constexpr (SECOND) {
    _tile_stored(2, acc + 16 * PANEL_ROWS, B_STRIDE);
    _tile_stored(3, acc + 16 * PANEL_ROWS + 16, B_STRIDE);
  }
}

// Calls put(t, sums of PANEL_ROWS rows) for `count` tokens.
template <class Put>
static inline void tile_pass(const uint8_t* panel, const int8_t* q, uint32_t width, uint32_t count, Put put) {
  alignas(64) int32_t acc[TILE_TOKENS * PANEL_ROWS];
  asm volatile("" ::: "memory");  // tile loads do not tell GCC what they read
  for (uint32_t t = 0, shaped = 0; t < count; t += shaped) {
    const uint32_t tokens = count - t < TILE_TOKENS ? count - t : TILE_TOKENS, first = tokens < 16 ? tokens : 16;
    if (tokens != shaped) shape_tiles(first, tokens - first);
    shaped = tokens;
    if (tokens > 16) {
      tile_tokens<true>(panel, q + size_t(t) * width, width, acc);
    } else {
      tile_tokens<false>(panel, q + size_t(t) * width, width, acc);
    }
    for (uint32_t i = 0; i < tokens; ++i) put(t + i, acc + i * PANEL_ROWS);
  }
  _tile_release();
}

}  // namespace bitnet::BITNET_PATH
