// Rows of the dense types: decoding to f32. Blocks as in the catalogue.
#pragma once
#include <type_traits>

#include "launch.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DECODE = 256;  // elements decoded at a time; whole blocks of every type

template <Dtype D>
static inline size_t row_bytes(uint32_t width) {
  if constexpr (D == F32) return size_t(width) * 4;
  if constexpr (D == F16 || D == BF16) return size_t(width) * 2;
  if constexpr (D == Q8_0) return size_t(width) / 32 * 34;
  if constexpr (D == Q6_K) return size_t(width) / 256 * 210;
}

// Returns LANES consecutive elements of an f32, f16 or bf16 row.
template <Dtype D>
static inline Vec load_dense(const uint8_t* row, uint32_t k) {
  if constexpr (D == F32) return load(reinterpret_cast<const float*>(row) + k);
  if constexpr (D == F16) return load_f16(row + 2 * size_t(k));
  if constexpr (D == BF16) return load_bf16(row + 2 * size_t(k));
}

template <Dtype D>
static inline float load_one(const uint8_t* row, uint32_t k) {
  if constexpr (D == F32) return load_f32(row + 4 * size_t(k));
  if constexpr (D == F16) return half_to_float(load_u16(row + 2 * size_t(k)));
  if constexpr (D == BF16) return bf16_to_float(load_u16(row + 2 * size_t(k)));
}

// 32 elements: f16 d, i8[32].
static inline void decode_q8_0(const uint8_t* block, float* out) {
  const Vec d = splat(half_to_float(load_u16(block)));
  const auto* q = reinterpret_cast<const int8_t*>(block + 2);
  for (uint32_t i = 0; i < 32; i += LANES) store(out + i, load_i8(q + i) * d);
}

// The numbers -32..31 of 256 elements, ql[128] and qh[64].
static inline void unpack_q6_k(const uint8_t* block, int8_t* __restrict q) {
  for (uint32_t half = 0; half < 2; ++half) {
    const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
    int8_t* o = q + 128 * half;
    for (uint32_t i = 0; i < 32; ++i) o[i] = int8_t(((low[i] & 15) | (high[i] << 4 & 0x30)) - 32);
    for (uint32_t i = 0; i < 32; ++i) o[32 + i] = int8_t(((low[32 + i] & 15) | (high[i] << 2 & 0x30)) - 32);
    for (uint32_t i = 0; i < 32; ++i) o[64 + i] = int8_t((low[i] >> 4 | (high[i] & 0x30)) - 32);
    for (uint32_t i = 0; i < 32; ++i) o[96 + i] = int8_t((low[32 + i] >> 4 | (high[i] >> 2 & 0x30)) - 32);
  }
}

// 256 elements: ql[128], qh[64], i8 scales[16], f16 d; value = d * scale * (q - 32).
struct Q6 {
  int8_t q[256];
  float scale[16];

  explicit Q6(const uint8_t* block) {
    unpack_q6_k(block, q);
    const Vec d = splat(half_to_float(load_u16(block + 208)));
    for (uint32_t g = 0; g < 16; g += LANES) store(scale + g, d * load_i8(reinterpret_cast<const int8_t*>(block + 192) + g));
  }

  // Returns LANES values from k on.
  Vec values(uint32_t k) const { return load_i8(q + k) * splat(scale[k / 16]); }
};

static inline void decode_q6_k(const uint8_t* block, float* out) {
  const Q6 values(block);
  for (uint32_t k = 0; k < 256; k += LANES) store(out + k, values.values(k));
}

// Decodes up to DECODE elements from column k (a multiple of DECODE) of a row.
template <Dtype D>
static inline void decode_part(const uint8_t* row, uint32_t k, uint32_t count, float* out) {
  if constexpr (D == Q6_K) {
    decode_q6_k(row + size_t(k / 256) * 210, out);
  } else if constexpr (D == Q8_0) {
    for (uint32_t i = 0; i < count; i += 32) decode_q8_0(row + size_t((k + i) / 32) * 34, out + i);
  } else {
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) store(out + i, load_dense<D>(row, k + i));
    for (; i < count; ++i) out[i] = load_one<D>(row, k + i);
  }
}

template <class F>
static inline void with_dtype(uint32_t dtype, F f) {
  switch (dtype) {
    case F32: return f(std::integral_constant<Dtype, F32>());
    case F16: return f(std::integral_constant<Dtype, F16>());
    case BF16: return f(std::integral_constant<Dtype, BF16>());
    case Q8_0: return f(std::integral_constant<Dtype, Q8_0>());
    default: return f(std::integral_constant<Dtype, Q6_K>());
  }
}

}  // namespace bitnet::BITNET_PATH
