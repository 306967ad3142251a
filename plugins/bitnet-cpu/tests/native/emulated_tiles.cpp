// The amx path with its tile instructions in plain C++, so that its loops run, also under sanitizers, on a CPU without AMX.
#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

struct Tile {
  uint32_t rows, row_bytes;
  int32_t cells[16][16];
};

thread_local Tile tiles[8];

// Using a tile that has no shape is an invalid instruction.
Tile& shaped(int number) {
  Tile& tile = tiles[number];
  if (tile.rows == 0 || tile.row_bytes == 0) std::abort();
  return tile;
}

void load_shapes(const void* config) {
  uint8_t bytes[64];
  std::memcpy(bytes, config, 64);
  if (bytes[0] != 1) std::abort();
  for (int i = 0; i < 8; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
    if (row_bytes > 64 || bytes[48 + i] > 16 || (row_bytes == 0) != (bytes[48 + i] == 0)) std::abort();
    tiles[i] = {bytes[48 + i], row_bytes, {}};
  }
}

void load_tile(int number, const void* from, size_t stride) {
  Tile& tile = shaped(number);
  for (uint32_t i = 0; i < tile.rows; ++i)
    std::memcpy(tile.cells[i], static_cast<const uint8_t*>(from) + i * stride, tile.row_bytes);
}

void store_tile(int number, void* to, size_t stride) {
  const Tile& tile = shaped(number);
  for (uint32_t i = 0; i < tile.rows; ++i)
    std::memcpy(static_cast<uint8_t*>(to) + i * stride, tile.cells[i], tile.row_bytes);
}

void zero_tile(int number) { std::memset(shaped(number).cells, 0, sizeof(Tile::cells)); }

// Signed bytes of a, unsigned bytes of b.
void multiply_tiles(int sums, int a, int b) {
  Tile& c = shaped(sums);
  const Tile &x = shaped(a), &w = shaped(b);
  if (c.rows != x.rows || c.row_bytes != w.row_bytes || x.row_bytes / 4 != w.rows) std::abort();
  for (uint32_t m = 0; m < c.rows; ++m)
    for (uint32_t k = 0; k < w.rows; ++k)
      for (uint32_t n = 0; n < c.row_bytes / 4; ++n)
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t code = uint32_t(w.cells[k][n]) >> (8 * i) & 0xff;
          c.cells[m][n] += int8_t(uint32_t(x.cells[m][k]) >> (8 * i)) * int32_t(code);
        }
}

}  // namespace

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig load_shapes
#define _tile_release() std::memset(tiles, 0, sizeof tiles)
#define _tile_zero zero_tile
#define _tile_loadd load_tile
#define _tile_stored store_tile
#define _tile_dpbsud multiply_tiles

#define BITNET_PATH emulated_tiles
#define BITNET_PATH_NAME "amx emulated"
#define BITNET_TILES
#include "simd/avx512.hpp"
#include "dot/amx.hpp"
#include "paths/all_kernels.hpp"

namespace bitnet {
extern const Path emulated_tiles_path;
const Path emulated_tiles_path = emulated_tiles::PATH;
}  // namespace bitnet
