// The `used` largest logits of each row in descending order, equal ones by ascending index, NaN as the largest; weights
// are the softmax over them.
#pragma once
#include <cmath>

#include "kernels/top_k.hpp"

namespace bitnet::BITNET_PATH {

static void route_experts(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<RouteParams>(launch);
  for (uint32_t t = begin; t < end; ++t) {
    const float* logits = view<float>(launch, 0) + size_t(t) * p.experts;
    float* weights = view<float>(launch, 2) + size_t(t) * p.used;
    TopK top{view<int32_t>(launch, 1) + size_t(t) * p.used, weights, p.used, 0};
    for (uint32_t e = 0; e < p.experts; ++e) top.offer(logits[e], e);
    const float most = weights[0];
    float total = 0;
    for (uint32_t i = 0; i < p.used; ++i) total += weights[i] = std::exp(weights[i] - most);
    for (uint32_t i = 0; i < p.used; ++i) weights[i] /= total;
  }
}

}  // namespace bitnet::BITNET_PATH
