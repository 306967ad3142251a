// Per row: y = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then int8 absmax quantization of the row
// (ABLOCK 0) or of every ABLOCK columns.
#pragma once
#include "kernels/rows.hpp"

namespace bitnet::BITNET_PATH {

static void rms_norm_quantize(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<QuantizeParams>(launch);
  auto* y = reinterpret_cast<float*>(scratch);
  for (uint32_t t = begin; t < end; ++t) {
    const float* x = view<float>(launch, 0) + size_t(t) * p.width;
    if (launch.constants.norm) {
      apply_norm(x, view<float>(launch, 1), inverse_rms(x, p.width, p.eps), p.width, y);
      x = y;
    }
    quantize_row(x, p.width, p.stride, launch.constants.ablock, QuantizedRow(launch, t));
  }
}

}  // namespace bitnet::BITNET_PATH
