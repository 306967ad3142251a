// Per row: m = silu(min(gate, limit)) * clamp(up, -limit, limit), then int8 absmax quantization.
#pragma once
#include "kernels/gates.hpp"
#include "kernels/rows.hpp"

namespace bitnet::BITNET_PATH {

// The value is the second operand, so that NaN stays NaN.
static inline Vec clamped_glu(Vec gate, Vec up, Vec limit) {
  return silu(min(limit, gate)) * max(splat(0) - limit, min(limit, up));
}

static void clamp_glu_quantize(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<ClampParams>(launch);
  auto* m = reinterpret_cast<float*>(scratch);
  const Vec limit = splat(p.limit);
  for (uint32_t t = begin; t < end; ++t) {
    const float *gate = view<float>(launch, 0) + 2 * size_t(t) * p.width, *up = gate + p.width;
    uint32_t i = 0;
    for (; i + LANES <= p.width; i += LANES) store(m + i, clamped_glu(load(gate + i), load(up + i), limit));
    if (i < p.width) {
      float g[LANES] = {}, u[LANES] = {}, out[LANES];
      for (uint32_t j = 0; i + j < p.width; ++j) g[j] = gate[i + j], u[j] = up[i + j];
      store(out, clamped_glu(load(g), load(u), limit));
      for (uint32_t j = 0; i + j < p.width; ++j) m[i + j] = out[j];
    }
    quantize_row(m, p.width, p.stride, launch.constants.ablock, QuantizedRow(launch, t, 1));
  }
}

}  // namespace bitnet::BITNET_PATH
