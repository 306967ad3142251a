// Shared parts of the norm and quantize kernels: the norm of one f32 row, and its int8 absmax quantization.
#pragma once
#include <cmath>
#include <limits>

#include "launch.hpp"

namespace bitnet::BITNET_PATH {

// Returns 1 / sqrt(mean(x^2) + eps), NaN if the sum of squares is not finite.
static inline float inverse_rms(const float* x, uint32_t width, float eps) {
  Vec sums[4] = {splat(0), splat(0), splat(0), splat(0)};
  uint32_t i = 0;
  for (; i + 4 * LANES <= width; i += 4 * LANES)
    for (uint32_t j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * LANES);
      sums[j] = fma(v, v, sums[j]);
    }
  float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < width; ++i) total += x[i] * x[i];
  const float mean = total / float(width);
  if (!std::isfinite(mean)) return std::numeric_limits<float>::quiet_NaN();
  return 1.0f / std::sqrt(mean + eps);
}

// y = x * inverse * gamma; y may be x.
static inline void apply_norm(const float* x, const float* gamma, float inverse, uint32_t width, float* y) {
  const Vec factor = splat(inverse);
  uint32_t i = 0;
  for (; i + LANES <= width; i += LANES) store(y + i, load(x + i) * factor * load(gamma + i));
  for (; i < width; ++i) y[i] = x[i] * inverse * gamma[i];
}

// Returns max |y|, or -1 if a y is not finite.
static inline float absmax(const float* y, uint32_t width) {
  Vec most = splat(0), poison = splat(0);
  uint32_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const Vec v = load(y + i);
    most = max(abs(v), most);
    poison = fma(v, splat(0), poison);  // NaN if v is NaN or Inf
  }
  float m = largest(most), bad = sum(poison);
  for (; i < width; ++i) {
    const float v = std::fabs(y[i]);
    m = v > m ? v : m;
    bad += y[i] * 0.0f;
  }
  return bad == 0.0f ? m : -1.0f;
}

// Stores y * inverse rounded half to even and clipped to a byte. Returns the sum of the codes.
static inline int32_t codes_of(const float* y, uint32_t width, float inverse, int8_t* q) {
  const Vec factor = splat(inverse), top = splat(127.0f), bottom = splat(-128.0f);
  uint32_t i = 0;
  for (; i + LANES <= width; i += LANES) store_i8(q + i, max(min(round(load(y + i) * factor), top), bottom));
  for (; i < width; ++i) {
    const float v = (y[i] * inverse + 0x1.8p23f) - 0x1.8p23f;  // half to even
    q[i] = int8_t(v > 127.0f ? 127.0f : v < -128.0f ? -128.0f : v);
  }
  int32_t total = 0;
  for (i = 0; i < width; ++i) total += q[i];
  return total;
}

// The parts of q[stride], scale and qsum that belong to one row.
struct QuantizedRow {
  int8_t* q;
  float* scale;
  int32_t* qsum;

  // first: the number of the view q
  QuantizedRow(const Launch& launch, uint32_t t, uint32_t first = 2) {
    const auto p = params_of<QuantizeParams>(launch);
    const uint32_t scales = scales_of(p.stride, launch.constants.ablock);
    q = view<int8_t>(launch, first) + size_t(t) * p.stride;
    scale = view<float>(launch, first + 1) + size_t(t) * scales;
    qsum = view<int32_t>(launch, first + 2) + size_t(t) * scales;
  }
};

// a = max(max |y|, floor), q = round(y * (127 / a)), scale = a / 127, qsum = sum of q: a over every `block` columns,
// scale and qsum of every PART of them, or all three over the row if block is 0; scale NaN and q 0 in rows with a NaN
// or Inf.
static inline void quantize_row(const float* y, uint32_t width, uint32_t stride, uint32_t block, const QuantizedRow& out) {
  const float most = absmax(y, width), floor = block != 0 ? 1e-20f : 1e-5f;
  const uint32_t columns = block != 0 ? block : stride, part = block != 0 ? PART : stride;
  const uint32_t held = most < 0 ? 0 : width;  // columns whose codes are not 0
  float a = most < 0 ? std::numeric_limits<float>::quiet_NaN() : most > floor ? most : floor;
  for (uint32_t first = 0, i = 0; first < stride; first += part, ++i) {
    if (held != 0 && block != 0 && first % columns == 0) {
      const float here = first < width ? absmax(y + first, smaller(columns, width - first)) : 0;
      a = here > floor ? here : floor;
    }
    const uint32_t count = first < held ? smaller(part, held - first) : 0;
    out.qsum[i] = codes_of(y + first, count, 127.0f / a, out.q + first);
    out.scale[i] = a / 127.0f;
    for (uint32_t k = first + count; k < first + part; ++k) out.q[k] = 0;
  }
}

}  // namespace bitnet::BITNET_PATH
