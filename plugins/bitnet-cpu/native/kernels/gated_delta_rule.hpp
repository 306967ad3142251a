// For each row in sequence, and value head h with q and k of key head h % n_key_heads:
//   q /= sqrt(|q|^2 + eps) sqrt(key_dim);  k /= sqrt(|k|^2 + eps);  g = exp(rate[h] softplus(a + dt[h]));  beta =
//   sigmoid(b)
//   S *= g;  S += k (beta (v - S^T k))^T;  out = S^T q,  S = state[sequence, h] f32[key_dim, value_dim], zeros at
//   position 0
// A workgroup computes TILE_N columns of one head's S. Rows without a position, or of a sequence without a state, give
// zeros.
#pragma once
#include <cmath>

#include "launch.hpp"

namespace bitnet::BITNET_PATH {

static inline void get(const float* p, float& f) { f = *p; }
static inline void get(const float* p, Vec& v) { v = load(p); }
static inline void put(float* p, float f) { *p = f; }
static inline void put(float* p, Vec v) { store(p, v); }
static inline void spread(float f, float& to) { to = f; }
static inline void spread(float f, Vec& to) { to = splat(f); }

struct DeltaStep {
  const float *q, *k;
  float decay, beta;
  uint32_t key_dim, stride;  // stride: of a row of S
};

// The columns of S that one T holds; state, v and out point to the first.
template <class T>
static inline void delta_columns(const DeltaStep& d, const float* v, float* state, float* out) {
  T decay, beta, sum, value, factor, s;
  spread(d.decay, decay), spread(d.beta, beta), spread(0, sum);
  for (uint32_t i = 0; i < d.key_dim; ++i) {
    get(state + size_t(i) * d.stride, s), spread(d.k[i], factor);
    s = s * decay;
    put(state + size_t(i) * d.stride, s);
    sum = sum + s * factor;
  }
  get(v, value);
  const T error = beta * (value - sum);
  spread(0, sum);
  for (uint32_t i = 0; i < d.key_dim; ++i) {
    get(state + size_t(i) * d.stride, s), spread(d.k[i], factor);
    s = s + factor * error;
    put(state + size_t(i) * d.stride, s);
    spread(d.q[i], factor);
    sum = sum + s * factor;
  }
  put(out, sum);
}

// y = x * factor / sqrt(|x|^2 + eps)
static inline void unit(const float* x, uint32_t dim, float eps, float factor, float* y) {
  float total = 0;
  for (uint32_t i = 0; i < dim; ++i) total += x[i] * x[i];
  const float inverse = factor / std::sqrt(total + eps);
  for (uint32_t i = 0; i < dim; ++i) y[i] = x[i] * inverse;
}

static inline float softplus(float z) { return (z > 0 ? z : 0) + std::log1p(std::exp(-std::fabs(z))); }

static void gated_delta_rule(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<DeltaParams>(launch);
  const uint32_t tile = launch.constants.tile_n, keys = p.n_key_heads * p.key_dim, columns = p.n_heads * p.value_dim;
  const size_t size = size_t(p.key_dim) * columns, sequences = launch.views[5].size / 4 / size;
  const float shorter = float(1 / std::sqrt(double(p.key_dim)));
  auto *q = reinterpret_cast<float*>(scratch), *k = q + p.key_dim;
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t h = g % launch.grid[0], first = g / launch.grid[0] * tile, count = smaller(tile, p.value_dim - first);
    for (uint32_t t = 0; t < p.rows; ++t) {
      const Step step = view<Step>(launch, 4)[t];
      float* out = view<float>(launch, 6) + size_t(t) * columns + size_t(h) * p.value_dim + first;
      if (step.position < 0 || size_t(step.sequence) >= sequences) {
        for (uint32_t c = 0; c < count; ++c) out[c] = 0;
        continue;
      }
      float* state = view<float>(launch, 5) + size_t(step.sequence) * size + size_t(h) * p.key_dim * p.value_dim + first;
      for (uint32_t i = 0; step.position == 0 && i < p.key_dim; ++i)
        for (uint32_t c = 0; c < count; ++c) state[size_t(i) * p.value_dim + c] = 0;
      const float *row = view<float>(launch, 0) + size_t(t) * (2 * keys + columns), *key = row + h % p.n_key_heads * p.key_dim;
      const float* gates = view<float>(launch, 1) + size_t(t) * 2 * p.n_heads;
      unit(key, p.key_dim, p.eps, shorter, q);
      unit(key + keys, p.key_dim, p.eps, 1, k);
      const float decay = std::exp(view<float>(launch, 2)[h] * softplus(gates[h] + view<float>(launch, 3)[h]));
      const float beta = 1 / (1 + std::exp(-gates[p.n_heads + h]));
      const float* v = row + 2 * keys + size_t(h) * p.value_dim + first;
      const DeltaStep d{q, k, decay, beta, p.key_dim, p.value_dim};
      uint32_t c = 0;
      for (; c + LANES <= count; c += LANES) delta_columns<Vec>(d, v + c, state + c, out + c);
      for (; c < count; ++c) delta_columns<float>(d, v + c, state + c, out + c);
    }
  }
}

}  // namespace bitnet::BITNET_PATH
