// e^x of f32 vectors, within 2 units in the last place; 0 below -87.3, at most 2^128 / 1.0001, NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7.
#pragma once

namespace bitnet::BITNET_PATH {

static inline Vec exp(Vec x) {
  const Vec lowest = splat(-87.33654f);
  Vec n = round(max(min(x * splat(1.44269504f), splat(127.0f)), splat(-126.0f)));
  const Vec bounded = min(splat(88.72f), x);
  Vec r = fma(n, splat(-0.693359375f), bounded);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return clear_below(x, lowest, p * exp2_whole(n));
}

}  // namespace bitnet::BITNET_PATH
