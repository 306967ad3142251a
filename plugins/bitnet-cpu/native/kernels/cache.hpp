// Rows of the paged KV cache: addresses, storing and reading.
#pragma once
#include <cmath>

#include "launch.hpp"

namespace bitnet::BITNET_PATH {

struct Cache {
  uint8_t* data;
  uint32_t kv, heads, row_bytes;
  size_t blocks;  // whole blocks of the view

  // P: RopeParams or AttentionParams.
  template <class P>
  Cache(const Bytes& bytes, uint32_t kv_type, const P& p)
      : data(bytes.data), kv(kv_type), heads(p.n_kv_heads), row_bytes(p.row_bytes),
        blocks(bytes.size / (size_t(heads) * KV_BLOCK * row_bytes)) {}

  // Returns the 64 rows of one head in one block, row_bytes apart.
  uint8_t* rows(size_t block, uint32_t head) const { return data + (block * heads + head) * KV_BLOCK * row_bytes; }

  uint8_t* at_slot(uint32_t slot, uint32_t head) const {
    return rows(slot / KV_BLOCK, head) + size_t(slot % KV_BLOCK) * row_bytes;
  }

  // Returns the scale of an int8 row; the other types have none.
  float scale(const uint8_t* row) const { return kv == KV_INT8 ? load_f32(row) : 1.0f; }
};

static inline void encode_i8(const float* x, uint32_t n, uint8_t* row) {
  float most = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const float v = std::fabs(x[i]);
    most = v > most || v != v ? v : most;
  }
  const float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
  __builtin_memcpy(row, &scale, 4);
  auto* q = reinterpret_cast<int8_t*>(row + 4);
  for (uint32_t i = 0; i < n; ++i) {
    const float v = (x[i] * inverse + 0x1.8p23f) - 0x1.8p23f;  // half to even
    q[i] = v >= -127.0f && v <= 127.0f ? int8_t(v) : int8_t(0);  // the scale keeps NaN and Inf
  }
}

static inline void encode_row(uint32_t kv, const float* x, uint32_t n, uint8_t* row) {
  if (kv == KV_INT8) return encode_i8(x, n, row);
  if (kv == KV_F32) {
    __builtin_memcpy(row, x, size_t(n) * 4);
    return;
  }
  uint32_t i = 0;
  for (; i + LANES <= n; i += LANES) store_f16(row + 2 * i, load(x + i));
  for (; i < n; ++i) {
    const uint16_t h = float_to_half(x[i]);
    __builtin_memcpy(row + 2 * i, &h, 2);
  }
}

// Returns LANES elements from column i, without the scale of int8 rows.
template <KvCacheType KV>
static inline Vec load_kv(const uint8_t* row, uint32_t i) {
  if constexpr (KV == KV_F32) return load(reinterpret_cast<const float*>(row) + i);
  if constexpr (KV == KV_F16) return load_f16(row + 2 * i);
  if constexpr (KV == KV_INT8) return load_i8(reinterpret_cast<const int8_t*>(row + 4) + i);
}

template <KvCacheType KV>
static inline float load_kv_one(const uint8_t* row, uint32_t i) {
  if constexpr (KV == KV_F32) return load_f32(row + 4 * i);
  if constexpr (KV == KV_F16) return half_to_float(load_u16(row + 2 * i));
  if constexpr (KV == KV_INT8) return float(reinterpret_cast<const int8_t*>(row + 4)[i]);
}

}  // namespace bitnet::BITNET_PATH
