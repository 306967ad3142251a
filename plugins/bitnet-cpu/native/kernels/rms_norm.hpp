// y[l, :] = x[r, :] / sqrt(mean(x[r]^2) + eps) * gamma with r = index[l]. A row outside x gives NaN.
#pragma once
#include "kernels/rows.hpp"

namespace bitnet::BITNET_PATH {

static void rms_norm(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<NormParams>(launch);
  const size_t available = launch.views[0].size / 4 / p.width;
  for (uint32_t l = begin; l < end; ++l) {
    const int32_t row = view<int32_t>(launch, 1)[l];
    float* y = view<float>(launch, 3) + size_t(l) * p.width;
    if (row < 0 || size_t(row) >= available) {
      for (uint32_t i = 0; i < p.width; ++i) y[i] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const float* x = view<float>(launch, 0) + size_t(row) * p.width;
    apply_norm(x, view<float>(launch, 2), inverse_rms(x, p.width, p.eps), p.width, y);
  }
}

}  // namespace bitnet::BITNET_PATH
