// y[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c]): a depthwise convolution over the inputs of the row's own
// sequence. state[sequence] f32[taps - 1, channels] holds the inputs before the row, oldest first; each row updates it,
// and it is zero at position 0. Rows without a position, or of a sequence without a state, give zeros.
#pragma once
#include "kernels/gates.hpp"

namespace bitnet::BITNET_PATH {

// Computes one row of `count` channels; weight is f32[taps, count], a row of the state has `channels` elements.
static inline void convolve(const float* x, const float* weight, uint32_t taps, uint32_t count, uint32_t channels, float* state,
                            float* sums) {
  for (uint32_t c = 0; c < count; ++c) sums[c] = weight[c] * state[c];
  for (uint32_t j = 1; j < taps; ++j) {
    const float* inputs = j + 1 < taps ? state + size_t(j) * channels : x;
    for (uint32_t c = 0; c < count; ++c) sums[c] += weight[size_t(j) * count + c] * inputs[c];
  }
  for (uint32_t j = 0; j + 1 < taps; ++j) {
    const float* next = j + 2 < taps ? state + size_t(j + 1) * channels : x;
    for (uint32_t c = 0; c < count; ++c) state[size_t(j) * channels + c] = next[c];
  }
}

static void causal_conv1d(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<ConvParams>(launch);
  const uint32_t tile = launch.constants.tile_n;
  const size_t size = size_t(p.taps - 1) * p.channels, sequences = launch.views[3].size / 4 / size;
  auto *weight = reinterpret_cast<float*>(scratch), *sums = weight + size_t(p.taps) * tile, *ones = sums + tile;
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t first = g * tile, count = smaller(tile, p.channels - first);
    for (uint32_t c = 0; c < count; ++c) {
      ones[c] = 1;
      for (uint32_t j = 0; j < p.taps; ++j) weight[size_t(j) * count + c] = view<float>(launch, 2)[size_t(first + c) * p.taps + j];
    }
    for (uint32_t t = 0; t < p.rows; ++t) {
      const Step step = view<Step>(launch, 1)[t];
      const size_t at = size_t(t) * p.channels + first;
      float* y = view<float>(launch, 4) + at;
      if (step.position < 0 || size_t(step.sequence) >= sequences) {
        for (uint32_t c = 0; c < count; ++c) y[c] = 0;
        continue;
      }
      float* state = view<float>(launch, 3) + size_t(step.sequence) * size + first;
      for (uint32_t j = 0; step.position == 0 && j + 1 < p.taps; ++j)
        for (uint32_t c = 0; c < count; ++c) state[size_t(j) * p.channels + c] = 0;
      convolve(view<float>(launch, 0) + at, weight, p.taps, count, p.channels, state, sums);
      gate_times(SILU, sums, ones, count, y);
    }
  }
}

}  // namespace bitnet::BITNET_PATH
