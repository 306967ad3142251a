// ids[l, i], values[l, i] = the k largest logits of row l in descending order, equal ones by ascending index; NaN is
// the largest; padded with -1 and -Inf. total[l] = (m, log(sum exp(logit - m))) over the allowed ones, m their largest.
#pragma once
#include <cmath>

#include "kernels/allowed.hpp"
#include "simd/exp.hpp"

namespace bitnet::BITNET_PATH {

struct TopK {
  int32_t* ids;
  float* values;
  uint32_t k, count;

  // An earlier index wins ties, and candidates arrive by ascending index.
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

// Copies the allowed logits, and -Inf for the others.
static inline float allowed_logit(const float* logits, const Allowed& allowed, uint32_t i) {
  return allowed(i) ? logits[i] : -INFINITY;
}

static inline void add_up(const float* logits, uint32_t vocab, const Allowed& allowed, float* total) {
  const auto lanes = [&](uint32_t i) {
    if (allowed.words == nullptr && i + LANES <= vocab) return load(logits + i);
    float part[LANES];
    for (uint32_t j = 0; j < LANES; ++j) part[j] = i + j < vocab ? allowed_logit(logits, allowed, i + j) : -INFINITY;
    return load(part);
  };
  Vec largest_yet = splat(-INFINITY), sums = splat(0);
  bool nan = false;
  for (uint32_t i = 0; i < vocab; i += LANES) {
    const Vec v = lanes(i);
    nan |= any_nan(v);
    largest_yet = max(v, largest_yet);
  }
  const float most = largest(largest_yet);
  for (uint32_t i = 0; i < vocab; i += LANES) sums = sums + exp(lanes(i) - splat(most));
  total[0] = nan ? NAN : most;
  total[1] = nan ? NAN : std::log(sum(sums));
}

static void top_k(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<TopKParams>(launch);
  for (uint32_t l = begin; l < end; ++l) {
    const float* logits = view<float>(launch, 0) + size_t(l) * p.stride;
    const Allowed allowed(launch, 1, l, p.vocab);
    TopK top{view<int32_t>(launch, 2) + size_t(l) * p.k, view<float>(launch, 3) + size_t(l) * p.k, p.k, 0};
    for (uint32_t i = 0; i < p.vocab;) {
      if (top.count == p.k && i + LANES <= p.vocab) {
        const Vec v = load(logits + i);
        if (!any_greater(v, splat(top.values[p.k - 1])) && !any_nan(v)) {
          i += LANES;
          continue;
        }
      }
      for (const uint32_t last = i + smaller(LANES, p.vocab - i); i < last; ++i)
        if (allowed(i)) top.offer(logits[i], i);
    }
    for (uint32_t i = top.count; i < p.k; ++i) top.ids[i] = -1, top.values[i] = -INFINITY;
    add_up(logits, p.vocab, allowed, view<float>(launch, 4) + 2 * size_t(l));
  }
}

}  // namespace bitnet::BITNET_PATH
