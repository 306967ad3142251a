// The parts of a matrix that a thread reads, and how it goes through them.
#pragma once
#include "launch.hpp"

namespace bitnet::BITNET_PATH {

constexpr uint32_t AHEAD = 1024;  // bytes from what is read of a run to what is asked of memory

// Matrix rows n0..n1 and tokens t0..t1 of workgroup g and, as far as `end`, its neighbours of the same tokens; `next` comes after them.
struct Tile {
  uint32_t n0, n1, t0, t1, next;

  Tile(const Launch& launch, uint32_t g, uint32_t end, uint32_t outs, uint32_t rows) {
    const uint32_t x = g % launch.grid[0], count = smaller(end - g, launch.grid[0] - x);
    n0 = x * launch.constants.tile_n, n1 = smaller(n0 + count * launch.constants.tile_n, outs);
    t0 = g / launch.grid[0] * launch.constants.tile_t, t1 = t0 + smaller(launch.constants.tile_t, rows - t0);
    next = g + count;
  }
};

// Rows n0..n1 as COUNT runs, read side by side: a processor looks ahead in each, which keeps more of memory on its way than one run does.
template <uint32_t COUNT>
struct Runs {
  uint32_t n0, n1, length = ceil_div(n1 - n0, COUNT);

  // The i-th row of run r, or the last row where the run has none.
  uint32_t row(uint32_t i, uint32_t r) const { return smaller(n0 + r * length + i, n1 - 1); }
  bool has(uint32_t i, uint32_t r) const { return r * length + i < n1 - n0; }
};

}  // namespace bitnet::BITNET_PATH
