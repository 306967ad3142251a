// The part of a matrix that a thread reads, and the order in which it reads it.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t AHEAD = 1024;  // bytes between the current position in a run and the prefetched one

// Matrix rows n0..n1 and tokens t0..t1 of workgroup g and, up to `end`, its neighbours with the same tokens; next: the
// first workgroup after them.
struct Tile {
  uint32_t n0, n1, t0, t1, next;

  Tile(const Launch& launch, uint32_t g, uint32_t end, uint32_t outs, uint32_t rows) {
    const uint32_t x = g % launch.grid[0], count = smaller(end - g, launch.grid[0] - x);
    n0 = x * launch.constants.tile_n, n1 = smaller(n0 + count * launch.constants.tile_n, outs);
    t0 = g / launch.grid[0] * launch.constants.tile_t, t1 = t0 + smaller(launch.constants.tile_t, rows - t0);
    next = g + count;
  }
};

// Rows n0..n1 as COUNT runs, read side by side: the hardware prefetches in each, so more loads are in flight than with
// one run.
template <uint32_t COUNT>
struct Runs {
  uint32_t n0, n1, length = ceil_div(n1 - n0, COUNT);

  // Returns the i-th row of run r, or the last row if the run is shorter.
  uint32_t row(uint32_t i, uint32_t r) const { return smaller(n0 + r * length + i, n1 - 1); }
  bool has(uint32_t i, uint32_t r) const { return r * length + i < n1 - n0; }
};

}  // namespace bitnet::BITNET_PATH
