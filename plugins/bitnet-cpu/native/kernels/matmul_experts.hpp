// matmul_ternary_block of each pair (row, one of its experts) with the matrix of its expert. The pairs of one expert
// are multiplied together, PAIRS_AT_ONCE at a time: directly from the packed blocks in launches of few rows, so that a
// pair has the same bits in every batch, and otherwise from unpacked panels if these serve more than two pairs.
// A workgroup computes a tile of one expert: of expert y or, with fewer pairs than experts, of the expert of pair y,
// unless an earlier pair has the same one.
// pair has the same.
#pragma once
#include "kernels/matmul_ternary_block.hpp"

namespace bitnet::BITNET_PATH {

struct ExpertMatmul {
  const Launch& launch;
  ExpertParams p;
  uint32_t pairs, blocks, scales;
  const int32_t* ids;

  explicit ExpertMatmul(const Launch& l)
      : launch(l), p(params_of<ExpertParams>(l)), pairs(p.rows * p.used), blocks(ceil_div(p.width, l.constants.block)),
        scales(scales_of(p.width, l.constants.ablock)), ids(view<int32_t>(l, 5)) {}

  // Returns the row of q that a pair multiplies.
  size_t source(uint32_t pair) const { return size_t(pair / p.used) * p.inputs + pair % p.used % p.inputs; }

  // Multiplies an expert's matrix with `count` consecutive rows; to: the row of y of each.
  BlockMatmul product(uint32_t expert, const int8_t* q, const float* scale, const int32_t* qsum, const uint32_t* to,
                      uint32_t count) const {
    const uint32_t block = launch.constants.block;
    const size_t first = size_t(expert) * p.outs;
    return {{view<uint8_t>(launch, 0) + first * (p.width / 4), view<float>(launch, 1) + first * blocks, q, scale, qsum,
             view<float>(launch, 6), MatmulParams{count, p.outs, p.width, p.y_stride, p.y_first}, false},
            block == 64 ? 6u : block == 128 ? 7u : 8u, launch.constants.ablock, blocks, p.width / PART, to};
  }

  void one(uint32_t expert, const uint32_t* pair, uint32_t n0, uint32_t n1, uint8_t* scratch) const {
    const size_t from = source(pair[0]);
    const BlockMatmul m = product(expert, view<int8_t>(launch, 2) + from * p.width, view<float>(launch, 3) + from * scales,
                                  view<int32_t>(launch, 4) + from * scales, pair, 1);
    block_direct<1>(m, TokenScales(m, 0, 1, scratch), 0, 0, 1, n0, n1);
  }

  // Multiplies `count` pairs, whose inputs are gathered in scratch after the space of a panel.
  void several(uint32_t expert, const uint32_t* pair, uint32_t count, uint32_t n0, uint32_t n1, uint8_t* scratch) const {
    auto* scale = reinterpret_cast<float*>(scratch + (size_t(p.width) + size_t(blocks) * 4) * PANEL_ROWS);
    auto* qsum = reinterpret_cast<int32_t*>(scale + size_t(PAIRS_AT_ONCE) * scales);
    auto* q = reinterpret_cast<int8_t*>(qsum + size_t(PAIRS_AT_ONCE) * scales);
    for (uint32_t i = 0; i < count; ++i) {
      const size_t from = source(pair[i]);
      __builtin_memcpy(q + size_t(i) * p.width, view<int8_t>(launch, 2) + from * p.width, p.width);
      __builtin_memcpy(scale + size_t(i) * scales, view<float>(launch, 3) + from * scales, size_t(scales) * 4);
      __builtin_memcpy(qsum + size_t(i) * scales, view<int32_t>(launch, 4) + from * scales, size_t(scales) * 4);
    }
    const BlockMatmul m = product(expert, q, scale, qsum, pair, count);
    if (p.rows > DIRECT_TOKENS && count > 2) return block_passes(m, scratch, 0, count, n0, n1);
    for (uint32_t t = 0; t < count; t += DIRECT_TOKENS) {
      const uint32_t end = smaller(t + DIRECT_TOKENS, count);
      const TokenScales s(m, t, end, scratch);
      const uint32_t left = block_direct<2>(m, s, t, block_direct<4>(m, s, t, t, end, n0, n1), end, n0, n1);
      block_direct<1>(m, s, t, left, end, n0, n1);
    }
  }

  void run(uint32_t expert, const uint32_t* pair, uint32_t count, uint32_t n0, uint32_t n1, uint8_t* scratch) const {
    if (count == 1) one(expert, pair, n0, n1, scratch);
    if (count > 1) several(expert, pair, count, n0, n1, scratch);
  }

  // Multiplies matrix rows n0..n1 of the expert of workgroup row y.
  void tile(uint32_t y, uint32_t n0, uint32_t n1, uint8_t* scratch) const {
    const bool by_pair = pairs < p.experts;
    const int32_t expert = by_pair ? ids[y] : int32_t(y);
    if (expert < 0 || uint32_t(expert) >= p.experts) return;
    for (uint32_t earlier = 0; by_pair && earlier < y; ++earlier)
      if (ids[earlier] == expert) return;
    uint32_t found[PAIRS_AT_ONCE], count = 0;
    for (uint32_t pair = by_pair ? y : 0; pair < pairs; ++pair) {
      if (ids[pair] != expert) continue;
      found[count++] = pair;
      if (count < PAIRS_AT_ONCE) continue;
      run(uint32_t(expert), found, count, n0, n1, scratch);
      count = 0;
    }
    run(uint32_t(expert), found, count, n0, n1, scratch);
  }
};

static void matmul_experts(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const ExpertMatmul m(launch);
  for (uint32_t g = begin; g < end;) {
    const uint32_t x = g % launch.grid[0], count = smaller(end - g, launch.grid[0] - x), tile_n = launch.constants.tile_n;
    m.tile(g / launch.grid[0], x * tile_n, smaller((x + count) * tile_n, m.p.outs), scratch);
    g += count;
  }
}

}  // namespace bitnet::BITNET_PATH
