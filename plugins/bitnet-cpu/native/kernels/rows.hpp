// What the norm and quantize kernels share: the norm of one f32 row, and its int8 absmax quantization.
#pragma once
#include <cmath>
#include <limits>

#include "launch.hpp"

namespace bitnet::BITNET_PATH {

// 1 / sqrt(mean(x^2) + eps), NaN where the sum of squares is not finite.
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

// max |y|, or -1 where some y is not finite.
static inline float absmax(const float* y, uint32_t width) {
  Vec most = splat(0), poison = splat(0);
  uint32_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const Vec v = load(y + i);
    most = max(abs(v), most);
    poison = fma(v, splat(0), poison);  // NaN where v is NaN or Inf
  }
  float m = largest(most), bad = sum(poison);
  for (; i < width; ++i) {
    const float v = std::fabs(y[i]);
    m = v > m ? v : m;
    bad += y[i] * 0.0f;
  }
  return bad == 0.0f ? m : -1.0f;
}

// a = max(max |y|, 1e-5), q = round(y * (127 / a)), scale = a / 127, qsum = sum of q; scale NaN and q 0 for bad rows.
static inline void quantize_row(const float* y, uint32_t width, uint32_t stride, int8_t* q, float* scale, int32_t* qsum) {
  const float most = absmax(y, width);
  if (most < 0) {
    for (uint32_t i = 0; i < stride; ++i) q[i] = 0;
    *scale = std::numeric_limits<float>::quiet_NaN();
    *qsum = 0;
    return;
  }
  const float a = most > 1e-5f ? most : 1e-5f, inverse = 127.0f / a;
  const Vec factor = splat(inverse), top = splat(127.0f), bottom = splat(-128.0f);
  uint32_t i = 0;
  for (; i + LANES <= width; i += LANES) store_i8(q + i, max(min(round(load(y + i) * factor), top), bottom));
  for (; i < width; ++i) {
    const float v = (y[i] * inverse + 0x1.8p23f) - 0x1.8p23f;  // half to even
    q[i] = int8_t(v > 127.0f ? 127.0f : v < -128.0f ? -128.0f : v);
  }
  int32_t total = 0;
  for (i = 0; i < width; ++i) total += q[i];
  for (i = width; i < stride; ++i) q[i] = 0;
  *scale = a / 127.0f;
  *qsum = total;
}

}  // namespace bitnet::BITNET_PATH
