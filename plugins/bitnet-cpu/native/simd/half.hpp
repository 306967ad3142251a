// Scalar f16 and bf16 conversion, for tails and for paths without such instructions.
#pragma once
#include <cstdint>
#include <cstring>

namespace bitnet {

static inline float bits_to_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

static inline uint32_t float_to_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);  // Inf, NaN
  if (magnitude >= 0x0400) return bits_to_float(sign | ((magnitude << 13) + (112u << 23)));
  const float f = float(magnitude) * 0x1p-24f;  // subnormal, exact
  return sign ? -f : f;
}

// Rounds to nearest, ties to even.
static inline uint16_t float_to_half(float f) {
  const uint32_t bits = float_to_bits(f), sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));  // NaN, made quiet
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);                             // rounds to 2^16 or more
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits
    return uint16_t(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000));
  }
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((magnitude - (112u << 23)) >> 13));
}

static inline float bf16_to_float(uint16_t b) { return bits_to_float(uint32_t(b) << 16); }

static inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

static inline float load_f32(const uint8_t* p) {
  float v;
  std::memcpy(&v, p, 4);
  return v;
}

}  // namespace bitnet
