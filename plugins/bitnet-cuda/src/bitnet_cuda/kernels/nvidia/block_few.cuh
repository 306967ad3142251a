// Ternary products with block scales for few rows on tensor cores. Weights are loaded as in ternary_few.cuh, 16 bytes
// per lane: of a unit of 256 columns, two I2_S blocks, lane (g, t) has half t % 2 of block t / 2. An activation block
// is one plane of one I2_S block, so sums are kept apart by plane and block until they are scaled.
#include "ternary_few.cuh"
#include "few_scales.cuh"
#include "regrouped.cuh"

__device__ inline void fragment(u32* a, Words low, Words high, int s, bool second) {
    a[0] = signs(second ? low.z : low.x, s), a[1] = signs(second ? high.z : high.x, s);
    a[2] = signs(second ? low.w : low.y, s), a[3] = signs(second ? high.w : high.y, s);
}
