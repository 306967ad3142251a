// ids[l, i], values[l, i] = the k largest logits of row l in falling order, equal ones by rising index; NaN is the largest.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

struct TopK {
  int32_t* ids;
  float* values;
  uint32_t k, count;

  // An earlier index wins ties, and candidates come by rising index.
  static bool before(float a, float b) { return a > b || (a != a && b == b); }

  void offer(float value, uint32_t id) {
    if (count == k && !before(value, values[k - 1])) return;
    uint32_t at = count < k ? count++ : k - 1;
    for (; at > 0 && before(value, values[at - 1]); --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = int32_t(id);
  }
};

static void top_k(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<TopKParams>(launch);
  for (uint32_t l = begin; l < end; ++l) {
    const float* logits = view<float>(launch, 0) + size_t(l) * p.vocab;
    TopK top{view<int32_t>(launch, 1) + size_t(l) * p.k, view<float>(launch, 2) + size_t(l) * p.k, p.k, 0};
    uint32_t i = 0;
    for (; i < p.k; ++i) top.offer(logits[i], i);
    for (; i + LANES <= p.vocab; i += LANES) {
      const Vec v = load(logits + i);
      if (!any_greater(v, splat(top.values[p.k - 1])) && !any_nan(v)) continue;
      for (uint32_t j = i; j < i + LANES; ++j) top.offer(logits[j], j);
    }
    for (; i < p.vocab; ++i) top.offer(logits[i], i);
  }
}

}  // namespace bitnet::BITNET_PATH
