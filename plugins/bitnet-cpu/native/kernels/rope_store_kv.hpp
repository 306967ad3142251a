// Rotates the query and key heads of qkv = [q | k | v] by (cos, sin) = rope[position], after a norm if QKNORM is 1 (h /
// sqrt(mean(h^2) + eps) * gamma). Writes q, and k and the unchanged v to the caches at the row's slot. Rows without a
// position or slot, and slots outside the cache, store nothing.
#pragma once
#include "kernels/cache.hpp"
#include "kernels/rows.hpp"

namespace bitnet::BITNET_PATH {

// pairs (j, j + half), or (2j, 2j + 1) if interleaved: (a, b) -> (a cos - b sin, b cos + a sin)
static inline void rotate(const float* x, const float* rope, uint32_t half, bool interleaved, float* out) {
  const uint32_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
  for (uint32_t j = 0; j < half; ++j) {
    const float a = x[j * step], b = x[j * step + apart], c = rope[2 * j], s = rope[2 * j + 1];
    out[j * step] = a * c - b * s;
    out[j * step + apart] = b * c + a * s;
  }
}

static void rope_store_kv(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<RopeParams>(launch);
  const bool interleaved = launch.constants.interleaved != 0;
  const uint32_t heads = p.n_heads + 2 * p.n_kv_heads, half = p.head_dim / 2;
  const Cache k_cache(launch.views[6], launch.constants.kv, p);
  const Cache v_cache(launch.views[7], launch.constants.kv, p);
  const size_t positions = launch.views[2].size / 4 / p.head_dim;
  auto *normed = reinterpret_cast<float*>(scratch), *rotated = normed + p.head_dim;
  for (uint32_t g = begin; g < end; ++g) {
    const uint32_t t = g / heads, head = g % heads;
    const Step step = view<Step>(launch, 1)[t];
    const uint32_t position = step.position < 0 ? 0 : uint32_t(step.position);
    if (position >= positions) continue;
    const float* x = view<float>(launch, 0) + size_t(g) * p.head_dim;
    const float* rope = view<float>(launch, 2) + size_t(position) * p.head_dim;
    if (launch.constants.qknorm != 0 && head < p.n_heads + p.n_kv_heads) {
      apply_norm(x, view<float>(launch, head < p.n_heads ? 3 : 4), inverse_rms(x, p.head_dim, p.eps), p.head_dim, normed);
      x = normed;
    }
    if (head < p.n_heads) {
      rotate(x, rope, half, interleaved, view<float>(launch, 5) + (size_t(t) * p.n_heads + head) * p.head_dim);
      continue;
    }
    if (step.position < 0 || step.slot < 0) continue;
    const bool key = head < p.n_heads + p.n_kv_heads;
    const Cache& cache = key ? k_cache : v_cache;
    if (size_t(step.slot) / KV_BLOCK >= cache.blocks) continue;
    if (key) {
      rotate(x, rope, half, interleaved, rotated);
      x = rotated;
    }
    encode_row(cache.kv, x, p.head_dim, cache.at_slot(uint32_t(step.slot), (head - p.n_heads) % p.n_kv_heads));
  }
}

}  // namespace bitnet::BITNET_PATH
