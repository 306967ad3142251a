// x[t, k] = (code[r, k] - 1) * wscale[r, k / BLOCK], r = token[t] - first, for rows with 0 <= r < count; other rows of
// x are unchanged.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

static void embed_rows_ternary(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<EmbedTernaryParams>(launch);
  const uint32_t tile = launch.constants.tile_n, block = launch.constants.block, blocks = ceil_div(p.width, block);
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t t = g / launch.grid[0], c0 = g % launch.grid[0] * tile, c1 = c0 + smaller(tile, p.hidden - c0);
    const int64_t row = int64_t(view<Step>(launch, 2)[t].token) - p.first;
    if (row < 0 || row >= p.count) continue;
    const uint8_t* codes = view<uint8_t>(launch, 0) + size_t(row) * (p.width / 4);
    const float* scales = view<float>(launch, 1) + size_t(row) * blocks;
    float* x = view<float>(launch, 3) + size_t(t) * p.hidden;
    for (uint32_t k = c0; k < c1; ++k) {
      const uint8_t byte = codes[k / 128 * 32 + k % 32];
      x[k] = float(int32_t(byte >> (6 - k / 32 % 4 * 2) & 3) - 1) * scales[k / block];
    }
  }
}

}  // namespace bitnet::BITNET_PATH
