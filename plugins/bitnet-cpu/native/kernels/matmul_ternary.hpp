// y[t, y_first + n] (+)= float(sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n], the sum exact in integers.
// With few tokens, rows are multiplied directly from the packed blocks. With more, a panel of rows is unpacked once and
// stays in the cache for all tokens of the tile.
#pragma once
#include "tiles.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t DIRECT_TOKENS = 8;

struct TernaryMatmul {
  const uint8_t* w;
  const float* wscale;
  const int8_t* q;
  const float* scale;
  const int32_t* qsum;
  float* y;
  MatmulParams p;
  bool add;

  void put(uint32_t t, uint32_t n, int32_t acc) const {
    float* at = y + size_t(t) * p.y_stride + p.y_first + n;
    const float value = float(acc - qsum[t]) * scale[t] * wscale[n];
    *at = add ? *at + value : value;
  }

  // The same for `count` rows from n on, in whole vectors where possible.
  void put_row(uint32_t t, uint32_t n, uint32_t count, const int32_t* acc) const {
    float* at = y + size_t(t) * p.y_stride + p.y_first + n;
    uint32_t r = 0;
    for (; r + LANES <= count; r += LANES) {
      const Vec value = load_i32(acc + r, qsum[t]) * splat(scale[t]) * load(wscale + n + r);
      store(at + r, add ? load(at + r) + value : value);
    }
    for (; r < count; ++r) put(t, n + r, acc[r]);
  }
};

// Multiplies as many whole groups of T tokens as there are. Returns the first remaining token.
template <uint32_t T>
[[gnu::noinline]] static uint32_t direct_tokens(const TernaryMatmul& m, uint32_t t0, uint32_t t1, uint32_t n0, uint32_t n1) {
  const uint32_t blocks = m.p.width / 128;
  const Runs<DOT_ROWS> runs{n0, n1};
  for (; t0 + T <= t1; t0 += T)
    for (uint32_t i = 0; i < runs.length; ++i) {
      const uint8_t* rows[DOT_ROWS];
      int32_t acc[DOT_ROWS * T];
      for (uint32_t r = 0; r < DOT_ROWS; ++r) rows[r] = m.w + size_t(runs.row(i, r)) * blocks * 32;
      ternary_rows<T>(rows, m.q + size_t(t0) * m.p.width, blocks, acc);
      for (uint32_t r = 0; r < DOT_ROWS && runs.has(i, r); ++r)
        for (uint32_t t = 0; t < T; ++t) m.put(t0 + t, runs.row(i, r), acc[r * T + t]);
    }
  return t0;
}

// Unpacks the panel of rows n0.., repeating the last row past n1: `put` writes BYTES of each row for a block. The next
// panel is prefetched meanwhile, since hardware prefetchers do not follow so many rows.
template <uint32_t BYTES, class Put>
static inline void fill_panel(const TernaryMatmul& m, uint32_t n0, uint32_t n1, Put put, uint8_t* panel) {
  const size_t row_bytes = m.p.width / 4;
  const uint8_t* rows[PANEL_ROWS];
  for (uint32_t r = 0; r < PANEL_ROWS; ++r) rows[r] = m.w + smaller(n0 + r, n1 - 1) * row_bytes;
  for (uint32_t b = 0; b < m.p.width / 128; ++b, panel += BYTES * PANEL_ROWS) {
    if (b % 2 == 0)
      for (const uint8_t* row : rows) prefetch(row + PANEL_ROWS * row_bytes);
    put(rows, panel);
    for (auto& row : rows) row += 32;
  }
}

static inline void unpack_panel(const TernaryMatmul& m, uint32_t n0, uint32_t n1, uint8_t* panel) {
  fill_panel<128>(m, n0, n1, unpack_block, panel);
}

// Multiplies as many whole groups of T tokens as there are. Returns the first remaining token. Never inlined, so that
// it has its own registers.
template <uint32_t T>
[[gnu::noinline]] static uint32_t panel_tile(const TernaryMatmul& m, const uint8_t* panel, uint32_t t0, uint32_t t1, uint32_t n0,
                                  uint32_t n1) {
  int32_t acc[T * PANEL_ROWS];
  for (; t0 + T <= t1; t0 += T) {
    panel_tokens<T>(panel, m.q + size_t(t0) * m.p.width, m.p.width, m.p.width, acc);
    for (uint32_t i = 0; i < T; ++i) m.put_row(t0 + i, n0, n1 - n0, acc + i * PANEL_ROWS);
  }
  return t0;
}

// Multiplies every token of the tile.
static inline void panel_pass(const TernaryMatmul& m, const uint8_t* panel, uint32_t t0, uint32_t t1, uint32_t n0,
                              uint32_t n1) {
#ifdef BITNET_TILES
  tile_pass(panel, m.q + size_t(t0) * m.p.width, m.p.width, t1 - t0,
            [&](uint32_t t, const int32_t* acc) { m.put_row(t0 + t, n0, n1 - n0, acc); });
#else
  t0 = panel_tile<PANEL_TOKENS>(m, panel, t0, t1, n0, n1);
  t0 = panel_tile<PANEL_TOKENS / 3>(m, panel, t0, t1, n0, n1);
  panel_tile<1>(m, panel, t0, t1, n0, n1);
#endif
}

static void matmul_ternary(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<MatmulParams>(launch);
  const TernaryMatmul m{view<uint8_t>(launch, 0),     view<float>(launch, 1), view<int8_t>(launch, 2),
                        view<float>(launch, 3),       view<int32_t>(launch, 4), view<float>(launch, 5),
                        p, launch.constants.add != 0};
  for (uint32_t g = begin; g < end;) {
    const Tile tile(launch, g, end, p.outs, p.rows);
    const uint32_t n0 = tile.n0, n1 = tile.n1, t0 = tile.t0, t1 = tile.t1;
    g = tile.next;
    if (t1 - t0 > DIRECT_TOKENS) {
      for (uint32_t n = n0; n < n1; n += PANEL_ROWS) {
        const uint32_t last = n + smaller(PANEL_ROWS, n1 - n);
        unpack_panel(m, n, last, scratch);
        panel_pass(m, scratch, t0, t1, n, last);
      }
    } else {
      direct_tokens<1>(m, direct_tokens<2>(m, direct_tokens<4>(m, t0, t1, n0, n1), t1, n0, n1), t1, n0, n1);
    }
  }
}

}  // namespace bitnet::BITNET_PATH
