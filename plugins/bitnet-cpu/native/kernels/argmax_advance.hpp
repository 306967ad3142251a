// Greedy sampling: the lowest index of the largest logit of each row, among the allowed ones if MASK is 1, or -1 if an
// allowed logit is NaN or no token is allowed, is written to history and step. The row advances by one position, or
// becomes unused. A row whose index, sequence or slot lies outside its buffer is unchanged.
#pragma once
#include <cmath>

#include "kernels/allowed.hpp"

namespace bitnet::BITNET_PATH {

static inline int32_t argmax(const float* logits, uint32_t vocab) {
  Vec most = splat(-INFINITY);
  bool nan = false;
  uint32_t i = 0;
  for (; i + LANES <= vocab; i += LANES) {
    const Vec v = load(logits + i);
    nan |= any_nan(v);
    most = max(v, most);
  }
  float best = largest(most);
  for (; i < vocab; ++i) {
    nan |= logits[i] != logits[i];
    best = logits[i] > best ? logits[i] : best;
  }
  if (nan) return -1;
  for (i = 0; logits[i] != best;) ++i;
  return int32_t(i);
}

static inline int32_t argmax_allowed(const float* logits, uint32_t vocab, const Allowed& allowed) {
  int32_t best = -1;
  for (uint32_t i = 0; i < vocab; ++i) {
    if (!allowed(i)) continue;
    if (logits[i] != logits[i]) return -1;
    if (best < 0 || logits[i] > logits[best]) best = int32_t(i);
  }
  return best;
}

static void argmax_advance(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<ArgmaxParams>(launch);
  const auto* tables = view<int32_t>(launch, 3);
  const size_t sequences = launch.views[3].size / 4 / p.max_blocks, rows = launch.views[4].size / sizeof(Step);
  const size_t histories = launch.views[5].size / 4 / (size_t(p.ring) + 1);
  for (uint32_t l = begin; l < end; ++l) {
    const int32_t row = view<int32_t>(launch, 2)[l];
    if (row < 0 || size_t(row) >= rows || size_t(row) >= histories) continue;
    Step& step = view<Step>(launch, 4)[row];
    if (step.position < 0 || step.sequence < 0 || size_t(step.sequence) >= sequences) continue;
    const float* logits = view<float>(launch, 0) + size_t(l) * p.stride;
    const Allowed allowed(launch, 1, l, p.vocab);
    step.token = allowed.words != nullptr ? argmax_allowed(logits, p.vocab, allowed) : argmax(logits, p.vocab);
    int32_t* history = view<int32_t>(launch, 5) + size_t(row) * (size_t(p.ring) + 1);
    if (history[0] >= 0 && history[0] < INT32_MAX && uint32_t(++history[0]) <= p.ring) history[history[0]] = step.token;
    const uint32_t position = uint32_t(step.position) + 1, column = position / KV_BLOCK;
    const int32_t block = column >= p.max_blocks ? -1 : tables[size_t(step.sequence) * p.max_blocks + column];
    if (step.token < 0 || block < 0 || block > INT32_MAX / int32_t(KV_BLOCK) - 1) {
      step.position = step.slot = -1;
    } else {
      step.position = int32_t(position);
      step.slot = block * int32_t(KV_BLOCK) + int32_t(position % KV_BLOCK);
    }
  }
}

}  // namespace bitnet::BITNET_PATH
