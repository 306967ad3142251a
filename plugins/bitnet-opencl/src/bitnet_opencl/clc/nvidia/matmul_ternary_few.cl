// matmul_ternary of a batch's rows on tensor cores (matmul_few.clh). Formula and shapes as in matmul_ternary.cl.
#define TILES (TILE_N / 16)
#define WARPS (GROUP / 32)
#define AREA __global
#include "few.clh"

KERNEL matmul_ternary_few(ARGUMENTS) {
    PARAMETERS
#include "matmul_few.clh"
}
