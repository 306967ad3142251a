// y[t] = H(signs * x[t]) or, with INVERSE 1, signs * H(x[t]), over every `block` columns of a row; H[i, j] =
// (-1)^popcount(i & j) / sqrt(block), by the fast transform: log2(block) passes of (a, b) -> (a + b, a - b).
#pragma once
#include <cmath>

#include "launch.hpp"

namespace bitnet::BITNET_PATH {

static inline void butterflies(float* z, uint32_t block) {
  for (uint32_t apart = 1; apart < block; apart *= 2)
    for (uint32_t first = 0; first < block; first += 2 * apart) {
      float *low = z + first, *high = low + apart;
      uint32_t j = 0;
      for (; j + LANES <= apart; j += LANES) {
        const Vec a = load(low + j), b = load(high + j);
        store(low + j, a + b);
        store(high + j, a - b);
      }
      for (; j < apart; ++j) {
        const float a = low[j], b = high[j];
        low[j] = a + b;
        high[j] = a - b;
      }
    }
}

static void hadamard_rotate(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<HadamardParams>(launch);
  const bool inverse = launch.constants.inverse != 0;
  const float scale = float(1 / std::sqrt(double(p.block)));
  auto* z = reinterpret_cast<float*>(scratch);
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t first = g % launch.grid[0] * p.block;
    const size_t at = size_t(g / launch.grid[0]) * p.width + first;
    const float *x = view<float>(launch, 0) + at, *signs = view<float>(launch, 1) + first;
    float* y = view<float>(launch, 2) + at;
    for (uint32_t i = 0; i < p.block; ++i) z[i] = inverse ? x[i] : x[i] * signs[i];
    butterflies(z, p.block);
    for (uint32_t i = 0; i < p.block; ++i) y[i] = inverse ? z[i] * scale * signs[i] : z[i] * scale;
  }
}

}  // namespace bitnet::BITNET_PATH
