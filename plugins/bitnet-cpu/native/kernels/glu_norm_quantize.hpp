// Per row: m = act(gate) * up, normed with gamma (NORM 1) or not, then int8 absmax quantization. act(g) = max(g, 0)^2
// (ACT 0) or g / (1 + e^-g) (ACT 1).
#pragma once
#include "kernels/gates.hpp"
#include "kernels/rows.hpp"

namespace bitnet::BITNET_PATH {

static void glu_norm_quantize(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<QuantizeParams>(launch);
  auto* m = reinterpret_cast<float*>(scratch);
  for (uint32_t t = begin; t < end; ++t) {
    const float* gate = view<float>(launch, 0) + 2 * size_t(t) * p.width;
    gate_times(launch.constants.act, gate, gate + p.width, p.width, m);
    if (launch.constants.norm) apply_norm(m, view<float>(launch, 1), inverse_rms(m, p.width, p.eps), p.width, m);
    quantize_row(m, p.width, p.stride, launch.constants.ablock, QuantizedRow(launch, t));
  }
}

}  // namespace bitnet::BITNET_PATH
