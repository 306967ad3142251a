// y[t, y_first + n] (+)= scale[t] * sum_b wscale[n, b] * (sum over block b of (code[n, k] - 1) * q[t, k]), the inner sums
// exact in integers. A row is unpacked once to signed bytes and meets every token.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

static inline void unpack_row(const uint8_t* w, uint32_t width, int8_t* out) {
  for (uint32_t b = 0; b < width / 128; ++b, w += 32, out += 128)
    for (uint32_t i = 0; i < 32; ++i) {
      out[i] = int8_t((w[i] >> 6) - 1);
      out[32 + i] = int8_t((w[i] >> 4 & 3) - 1);
      out[64 + i] = int8_t((w[i] >> 2 & 3) - 1);
      out[96 + i] = int8_t((w[i] & 3) - 1);
    }
}

static inline int32_t dot_i8(const int8_t* a, const int8_t* b, uint32_t n) {
  int32_t total = 0;
  for (uint32_t i = 0; i < n; ++i) total += a[i] * b[i];
  return total;
}

static void matmul_ternary_block(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<MatmulParams>(launch);
  const auto* w = view<uint8_t>(launch, 0);
  const auto* wscale = view<float>(launch, 1);
  const auto* q = view<int8_t>(launch, 2);
  const auto* scale = view<float>(launch, 3);
  auto* y = view<float>(launch, 4);
  const uint32_t block = launch.constants.block, blocks = ceil_div(p.width, block);
  auto* signs = reinterpret_cast<int8_t*>(scratch);
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t n0 = g % launch.grid[0] * launch.constants.tile_n, n1 = n0 + smaller(launch.constants.tile_n, p.outs - n0);
    const uint32_t t0 = g / launch.grid[0] * launch.constants.tile_t, t1 = t0 + smaller(launch.constants.tile_t, p.rows - t0);
    for (uint32_t n = n0; n < n1; ++n) {
      unpack_row(w + size_t(n) * (p.width / 4), p.width, signs);
      for (uint32_t t = t0; t < t1; ++t) {
        const int8_t* x = q + size_t(t) * p.width;
        float total = 0;
        for (uint32_t b = 0; b < blocks; ++b) {
          const uint32_t k = b * block;
          total += wscale[size_t(n) * blocks + b] * float(dot_i8(signs + k, x + k, smaller(block, p.width - k)));
        }
        float* at = y + size_t(t) * p.y_stride + p.y_first + n;
        const float value = total * scale[t];
        *at = launch.constants.add ? *at + value : value;
      }
    }
  }
}

}  // namespace bitnet::BITNET_PATH
