// Activation functions of gates: act(gate) * x over a row.
#pragma once
#include "launch.hpp"
#include "simd/exp.hpp"

namespace bitnet::BITNET_PATH {

enum Act : uint32_t { RELU2, SILU, SIGMOID };  // as in the catalogue

static inline Vec relu2(Vec g) {
  const Vec r = max(splat(0), g);  // NaN stays
  return r * r;
}

static inline Vec silu(Vec g) { return g / (splat(1) + exp(splat(0) - g)); }
static inline Vec sigmoid(Vec g) { return splat(1) / (splat(1) + exp(splat(0) - g)); }

template <class F>
static inline void gate_times(const float* gate, const float* x, uint32_t width, float* y, F act) {
  uint32_t i = 0;
  for (; i + LANES <= width; i += LANES) store(y + i, act(load(gate + i)) * load(x + i));
  if (i == width) return;
  float g[LANES] = {}, v[LANES] = {}, out[LANES];
  for (uint32_t j = 0; i + j < width; ++j) g[j] = gate[i + j], v[j] = x[i + j];
  store(out, act(load(g)) * load(v));
  for (uint32_t j = 0; i + j < width; ++j) y[i + j] = out[j];
}

// y[width] = act(gate) * x
static inline void gate_times(uint32_t act, const float* gate, const float* x, uint32_t width, float* y) {
  if (act == RELU2) return gate_times(gate, x, width, y, relu2);
  if (act == SILU) return gate_times(gate, x, width, y, silu);
  gate_times(gate, x, width, y, sigmoid);
}

}  // namespace bitnet::BITNET_PATH
