// y[t, y_first + n] (+)= sum_b wscale[n, b] * (sum over block b of (code[n, k] - 1) * q[t, k]) * scale, with exact
// integer sums over parts of 32 columns; scale[t] (ABLOCK 0), or one per 32 columns.
// With few tokens, rows are multiplied directly from the packed blocks, and the -1 of the codes is subtracted at the
// end. With more, a panel of rows is unpacked once and stays in the cache for all tokens of the tile.
#pragma once
#include "kernels/matmul_ternary.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t PAIR = 64;  // columns that always share a weight scale
#ifndef BITNET_PANEL_PAIR
constexpr uint32_t BLOCK_TOKENS = PANEL_TOKENS;
#endif

struct BlockMatmul {
  TernaryMatmul base;
  uint32_t shift, ablock, blocks, parts;  // shift: log2 of BLOCK, since a division in the inner loops takes as long as a product
  const uint32_t* rows = nullptr;         // the row of y of each token; null: its own number

  uint32_t block_of(uint32_t k) const { return k >> shift; }

  float scale(uint32_t t, uint32_t part) const { return base.scale[ablock != 0 ? size_t(t) * parts + part : t]; }

  int32_t qsum(uint32_t t, uint32_t part) const {
    if (ablock != 0) return base.qsum[size_t(t) * parts + part];
    const int8_t* q = base.q + size_t(t) * base.p.width + part * PART;
    int32_t total = 0;
    for (uint32_t i = 0; i < PART; ++i) total += q[i];
    return total;
  }

  float* at(uint32_t t, uint32_t n) const {
    return base.y + size_t(rows != nullptr ? rows[t] : t) * base.p.y_stride + base.p.y_first + n;
  }

  void put(uint32_t t, uint32_t n, float value) const { *at(t, n) = base.add ? *at(t, n) + value : value; }

  // The same for `count` rows from n on, in whole vectors where possible.
  void put_row(uint32_t t, uint32_t n, uint32_t count, const float* values) const {
    float* to = at(t, n);
    uint32_t r = 0;
    for (; r + LANES <= count; r += LANES) store(to + r, base.add ? load(to + r) + load(values + r) : load(values + r));
    for (; r < count; ++r) put(t, n + r, values[r]);
  }
};

// The data of a few tokens besides their codes: the scales of their parts, divided by the powers of two of pair_dot's
// planes, and the contribution of the -1 of a block's codes: sum over its parts of scale * qsum.
struct TokenScales {
  float *part, *ones;

  TokenScales(const BlockMatmul& m, uint32_t t0, uint32_t t1, uint8_t* scratch)
      : part(reinterpret_cast<float*>(scratch)), ones(part + size_t(t1 - t0) * m.parts) {
    for (uint32_t t = t0; t < t1; ++t) {
      float *to = part + size_t(t - t0) * m.parts, *sums = ones + size_t(t - t0) * m.blocks;
      for (uint32_t b = 0; b < m.blocks; ++b) sums[b] = 0;
      for (uint32_t i = 0; i < m.parts; ++i) {
        const float scale = m.scale(t, i);
        to[i] = scale * PLANE_SCALE[i % 4];
        sums[m.block_of(i * PART)] += scale * float(m.qsum(t, i));
      }
    }
  }
};

static inline float dot_f32(const float* a, const float* b, uint32_t n) {
  Vec lanes = splat(0);
  uint32_t i = 0;
  for (; i + LANES <= n; i += LANES) lanes = fma(load(a + i), load(b + i), lanes);
  float total = sum(lanes);
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

// Multiplies 64 columns of DOT_ROWS rows and T tokens, from column k on.
template <uint32_t HALF, uint32_t T>
static inline void pair_rows(const BlockMatmul& m, const Codes* codes, const float* const* wscale, const int8_t* q,
                             const float* scales, uint32_t k, Vec (*acc)[T]) {
  for (uint32_t t = 0; t < T; ++t) {
    const PartScales s = part_scales(scales + size_t(t) * m.parts + k / PART);
    for (uint32_t r = 0; r < DOT_ROWS; ++r) {
      const Vec lanes = pair_dot<HALF>(codes[r], q + size_t(t) * m.base.p.width + k, s);
      acc[r][t] = fma(lanes, splat(wscale[r][m.block_of(k)]), acc[r][t]);
    }
  }
}

// Multiplies T tokens from t on, whose scales start at `scales`, and the step-th row of each run.
template <uint32_t T>
static inline void block_rows(const BlockMatmul& m, const float* scales, const float* ones, uint32_t t, const Runs<DOT_ROWS>& runs,
                              uint32_t step) {
  const uint32_t width = m.base.p.width;
  const uint8_t* w[DOT_ROWS];
  const float* wscale[DOT_ROWS];
  Vec acc[DOT_ROWS][T];
  for (uint32_t r = 0; r < DOT_ROWS; ++r) {
    const size_t row = runs.row(step, r);
    w[r] = m.base.w + row * (width / 4);
    wscale[r] = m.base.wscale + row * m.blocks;
    for (uint32_t i = 0; i < T; ++i) acc[r][i] = splat(0);
  }
  const int8_t* q = m.base.q + size_t(t) * width;
  for (uint32_t k = 0; k < width; k += 2 * PAIR) {
    Codes codes[DOT_ROWS];
    for (uint32_t r = 0; r < DOT_ROWS; ++r) {
      prefetch(w[r] + k / 4 + AHEAD);
      codes[r] = load_codes(w[r] + k / 4);
    }
    pair_rows<0, T>(m, codes, wscale, q, scales, k, acc);
    pair_rows<1, T>(m, codes, wscale, q, scales, k + PAIR, acc);
  }
  for (uint32_t r = 0; r < DOT_ROWS && runs.has(step, r); ++r)
    for (uint32_t i = 0; i < T; ++i)
      m.put(t + i, runs.row(step, r), sum(acc[r][i]) - dot_f32(wscale[r], ones + size_t(i) * m.blocks, m.blocks));
}

// Multiplies as many whole groups of T tokens as there are. Returns the first remaining token. scales: of the tokens
// from `first` on.
template <uint32_t T>
static inline uint32_t block_direct(const BlockMatmul& m, const TokenScales& scales, uint32_t first, uint32_t t0, uint32_t t1,
                                    uint32_t n0, uint32_t n1) {
  const Runs<DOT_ROWS> runs{n0, n1};
  for (; t0 + T <= t1; t0 += T) {
    const size_t from = t0 - first;
    for (uint32_t step = 0; step < runs.length; ++step)
      block_rows<T>(m, scales.part + from * m.parts, scales.ones + from * m.blocks, t0, runs, step);
  }
  return t0;
}

// Multiplies T tokens from t on and a panel of rows: 64 columns at a time in integers, then added to the sums in f32.
template <uint32_t T>
static inline void block_panel(const BlockMatmul& m, const uint8_t* panel, const float* wscale, uint32_t t, uint32_t n0, uint32_t n1) {
  const uint32_t width = m.base.p.width;
  float sums[T * PANEL_ROWS] = {};
  const int8_t* q = m.base.q + size_t(t) * width;
  for (uint32_t k = 0; k < width; k += PAIR) {
#ifdef BITNET_PANEL_PAIR
    float scale[T][3];
    for (uint32_t i = 0; i < T; ++i) {
      const float s0 = m.scale(t + i, k / PART), s1 = m.scale(t + i, k / PART + 1);
      const float ones = s0 * float(m.qsum(t + i, k / PART)) + s1 * float(m.qsum(t + i, k / PART + 1));
      scale[i][0] = s0, scale[i][1] = s1, scale[i][2] = -ones;
    }
    panel_pair<T>(panel, k, q, width, scale, wscale + m.block_of(k) * PANEL_ROWS, sums);
#else
    int32_t first[T * PANEL_ROWS], second[T * PANEL_ROWS];
    panel_tokens<T>(panel + size_t(k) * PANEL_ROWS, q + k, width, PART, first);
    panel_tokens<T>(panel + (size_t(k) + PART) * PANEL_ROWS, q + k + PART, width, PART, second);
    const float* own = wscale + m.block_of(k) * PANEL_ROWS;
    for (uint32_t i = 0; i < T; ++i) {
      const uint32_t part = k / PART;
      const int32_t q0 = m.qsum(t + i, part), q1 = m.qsum(t + i, part + 1);
      const Vec s0 = splat(m.scale(t + i, part)), s1 = splat(m.scale(t + i, part + 1));
      for (uint32_t r = 0; r < PANEL_ROWS; r += LANES) {
        const uint32_t at = i * PANEL_ROWS + r;
        const Vec pair = fma(load_i32(second + at, q1), s1, load_i32(first + at, q0) * s0);
        store(sums + at, fma(pair, load(own + r), load(sums + at)));
      }
    }
#endif
  }
  for (uint32_t i = 0; i < T; ++i) m.put_row(t + i, n0, n1 - n0, sums + i * PANEL_ROWS);
}

// Multiplies the tokens t0..t1, at most T, together, since the two sums of a single token would wait for each other.
template <uint32_t T>
static inline void block_rest(const BlockMatmul& m, const uint8_t* panel, const float* wscale, uint32_t t0, uint32_t t1, uint32_t n0,
                              uint32_t n1) {
  if constexpr (T > 0) {
    if (t1 - t0 == T) return block_panel<T>(m, panel, wscale, t0, n0, n1);
    block_rest<T - 1>(m, panel, wscale, t0, t1, n0, n1);
  }
}

// Multiplies every token of the tile and the rows n0.. of one panel; wscale[b][PANEL_ROWS] follows the panel.
static inline void block_pass(const BlockMatmul& m, uint8_t* panel, uint32_t t0, uint32_t t1, uint32_t n0, uint32_t n1) {
#ifdef BITNET_PACKED_PANEL
  fill_panel<32>(m.base, n0, n1, pack_block, panel);
#else
  unpack_panel(m.base, n0, n1, panel);
#endif
  auto* wscale = reinterpret_cast<float*>(panel + size_t(m.base.p.width) * PANEL_ROWS);
  for (uint32_t b = 0; b < m.blocks; ++b)
    for (uint32_t r = 0; r < PANEL_ROWS; ++r)
      wscale[b * PANEL_ROWS + r] = m.base.wscale[size_t(smaller(n0 + r, n1 - 1)) * m.blocks + b];
  for (; t0 + BLOCK_TOKENS <= t1; t0 += BLOCK_TOKENS) block_panel<BLOCK_TOKENS>(m, panel, wscale, t0, n0, n1);
  block_rest<BLOCK_TOKENS - 1>(m, panel, wscale, t0, t1, n0, n1);
}

// The same for any number of rows.
static inline void block_passes(const BlockMatmul& m, uint8_t* panel, uint32_t t0, uint32_t t1, uint32_t n0, uint32_t n1) {
  for (uint32_t n = n0; n < n1; n += PANEL_ROWS) block_pass(m, panel, t0, t1, n, n + smaller(PANEL_ROWS, n1 - n));
}

static void matmul_ternary_block(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const auto p = params_of<MatmulParams>(launch);
  const uint32_t block = launch.constants.block;
  const BlockMatmul m{{view<uint8_t>(launch, 0), view<float>(launch, 1), view<int8_t>(launch, 2), view<float>(launch, 3),
                       view<int32_t>(launch, 4), view<float>(launch, 5), p, launch.constants.add != 0},
                      block == 64 ? 6u : block == 128 ? 7u : 8u, launch.constants.ablock, ceil_div(p.width, block), p.width / PART};
  for (uint32_t g = begin; g < end;) {
    const Tile tile(launch, g, end, p.outs, p.rows);
    const uint32_t n0 = tile.n0, n1 = tile.n1, t0 = tile.t0, t1 = tile.t1;
    g = tile.next;
    if (t1 - t0 > DIRECT_TOKENS) {
      block_passes(m, scratch, t0, t1, n0, n1);
    } else {
      const TokenScales s(m, t0, t1, scratch);
      const uint32_t left = block_direct<2>(m, s, t0, block_direct<4>(m, s, t0, t0, t1, n0, n1), t1, n0, n1);
      block_direct<1>(m, s, t0, left, t1, n0, n1);
    }
  }
}

}  // namespace bitnet::BITNET_PATH
