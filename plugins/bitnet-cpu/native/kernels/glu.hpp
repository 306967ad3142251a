// m[t, :] = act(gate) * up with gate_up[t] = [gate | up]; act(g) = max(g, 0)^2 (ACT 0) or g / (1 + e^-g) (ACT 1).
#pragma once
#include "kernels/gates.hpp"

namespace bitnet::BITNET_PATH {

static void glu(const Launch& launch, uint32_t begin, uint32_t end, uint8_t*) {
  const auto p = params_of<GluParams>(launch);
  for (uint32_t t = begin; t < end; ++t) {
    const float* gate = view<float>(launch, 0) + 2 * size_t(t) * p.width;
    gate_times(launch.constants.act, gate, gate + p.width, p.width, view<float>(launch, 1) + size_t(t) * p.width);
  }
}

}  // namespace bitnet::BITNET_PATH
