// y[t, h'] = norm(x[t, h]) * act(gate[t, h]) for each head h: norm(a) = a / sqrt(mean(a^2) + eps) * gamma (NORM 1) or a
// (NORM 0); act(g) = g / (1 + e^-g) (ACT 1) or 1 / (1 + e^-g) (ACT 2); h' = h % groups * (n_heads / groups) + h /
// groups.
#pragma once
#include "kernels/gates.hpp"
#include "kernels/rows.hpp"

namespace bitnet::BITNET_PATH {

static void gated_rms_norm(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<GatedNormParams>(launch);
  auto* normed = reinterpret_cast<float*>(scratch);
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t h = g % p.n_heads, to = h % p.groups * (p.n_heads / p.groups) + h / p.groups;
    const size_t row = size_t(g / p.n_heads) * p.n_heads;
    const float *x = view<float>(launch, 0) + size_t(g) * p.head_dim, *gate = view<float>(launch, 1) + size_t(g) * p.head_dim;
    if (launch.constants.norm) {
      apply_norm(x, view<float>(launch, 2), inverse_rms(x, p.head_dim, p.eps), p.head_dim, normed);
      x = normed;
    }
    gate_times(launch.constants.act, gate, x, p.head_dim, view<float>(launch, 3) + (row + to) * p.head_dim);
  }
}

}  // namespace bitnet::BITNET_PATH
