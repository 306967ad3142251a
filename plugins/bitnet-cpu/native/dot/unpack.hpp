// Unpacking of a panel's codes to bytes, in plain C++.
#pragma once
#include <cstdint>

namespace bitnet::BITNET_PATH {

// Unpacks one block of 128 columns: out[column / STEP][ROWS][STEP] from ROWS packed blocks of 32 bytes.
template <uint32_t ROWS, uint32_t STEP>
static inline void unpack_rows(const uint8_t* const* rows, uint8_t* out) {
  for (uint32_t j = 0; j < 32; j += STEP, out += ROWS * STEP) {
    uint8_t packed[ROWS * STEP];
    for (uint32_t r = 0; r < ROWS; ++r) __builtin_memcpy(packed + r * STEP, rows[r] + j, STEP);
    for (uint32_t i = 0; i < ROWS * STEP; ++i) {
      out[i] = packed[i] >> 6;
      out[32 * ROWS + i] = packed[i] >> 4 & 3;
      out[64 * ROWS + i] = packed[i] >> 2 & 3;
      out[96 * ROWS + i] = packed[i] & 3;
    }
  }
}

}  // namespace bitnet::BITNET_PATH
