// x[t, :] = table[token[t] - first, :] for rows with first <= token[t] < first + count; other rows of x are unchanged.
#pragma once
#include "kernels/dense.hpp"

namespace bitnet::BITNET_PATH {

template <Dtype D>
static inline void embed_part(const Launch& launch, uint32_t t, uint32_t c0, uint32_t c1) {
  const auto p = params_of<EmbedParams>(launch);
  const int64_t row = int64_t(view<Step>(launch, 1)[t].token) - p.first;
  if (row < 0 || row >= p.count) return;
  const uint8_t* source = view<uint8_t>(launch, 0) + size_t(row) * row_bytes<D>(p.hidden);
  float* x = view<float>(launch, 2) + size_t(t) * p.hidden;
  for (uint32_t c = c0; c < c1; c += DECODE) decode_part<D>(source, c, smaller(DECODE, c1 - c), x + c);
}

static void embed_rows(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const uint32_t hidden = launch.params[1], tile = launch.constants.tile_n;
  with_dtype(launch.constants.dtype, [&](auto dtype) {
    for (uint32_t g = begin; g < end; ++g) {
      const uint32_t c0 = g % launch.grid[0] * tile;
      embed_part<decltype(dtype)::value>(launch, g / launch.grid[0], c0, c0 + smaller(tile, hidden - c0));
    }
  });
}

}  // namespace bitnet::BITNET_PATH
