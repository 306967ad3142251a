// Per row: m = act(gate) * up, normed with gamma (NORM 1) or not, then int8 absmax quantization. act is max(g, 0)^2
// (ACT 0) or g / (1 + e^-g) (ACT 1).
#pragma once
#include "kernels/rows.hpp"
#include "simd/exp.hpp"

namespace bitnet::BITNET_PATH {

static inline Vec relu2(Vec g) {
  const Vec r = max(splat(0), g);  // NaN stays
  return r * r;
}

static inline Vec silu(Vec g) { return g / (splat(1) + exp(splat(0) - g)); }

template <class Act>
static inline void gate_times_up(const float* gate, const float* up, uint32_t width, float* m, Act act) {
  uint32_t i = 0;
  for (; i + LANES <= width; i += LANES) store(m + i, act(load(gate + i)) * load(up + i));
  if (i == width) return;
  float g[LANES] = {}, u[LANES] = {}, out[LANES];
  for (uint32_t j = 0; i + j < width; ++j) g[j] = gate[i + j], u[j] = up[i + j];
  store(out, act(load(g)) * load(u));
  for (uint32_t j = 0; i + j < width; ++j) m[i + j] = out[j];
}

static void glu_norm_quantize(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<QuantizeParams>(launch);
  auto* m = reinterpret_cast<float*>(scratch);
  for (uint32_t t = begin; t < end; ++t) {
    const float* gate = view<float>(launch, 0) + 2 * size_t(t) * p.width;
    if (launch.constants.act == 0) {
      gate_times_up(gate, gate + p.width, p.width, m, relu2);
    } else {
      gate_times_up(gate, gate + p.width, p.width, m, silu);
    }
    if (launch.constants.norm) apply_norm(m, view<float>(launch, 1), inverse_rms(m, p.width, p.eps), p.width, m);
    quantize_row(m, p.width, p.stride, launch.constants.ablock, QuantizedRow(launch, t));
  }
}

}  // namespace bitnet::BITNET_PATH
