// x[t, :] += sum_i weights[t, i] * y[t * used + i, :], in the order of i.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

static void sum_experts(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<SumParams>(launch);
  for (uint32_t t = begin; t < end; ++t) {
    const float* y = view<float>(launch, 0) + size_t(t) * p.used * p.width;
    const float* weights = view<float>(launch, 1) + size_t(t) * p.used;
    float* x = view<float>(launch, 2) + size_t(t) * p.width;
    uint32_t n = 0;
    for (; n + LANES <= p.width; n += LANES) {
      Vec total = splat(0);
      for (uint32_t i = 0; i < p.used; ++i) total = fma(splat(weights[i]), load(y + size_t(i) * p.width + n), total);
      store(x + n, load(x + n) + total);
    }
    for (; n < p.width; ++n) {
      float total = 0;
      for (uint32_t i = 0; i < p.used; ++i) total = fma_one(weights[i], y[size_t(i) * p.width + n], total);
      x[n] += total;
    }
  }
}

}  // namespace bitnet::BITNET_PATH
