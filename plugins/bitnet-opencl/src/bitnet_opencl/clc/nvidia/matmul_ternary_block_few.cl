// matmul_ternary_block of a batch's rows on tensor cores: see matmul_few.clh.
#define TILES (TILE_N / 16)
#define WARPS (GROUP / 32)
#define AREA __global
#include "few.clh"

KERNEL matmul_ternary_block_few(ARGUMENTS) {
    PARAMETERS
#include "matmul_few.clh"
}
