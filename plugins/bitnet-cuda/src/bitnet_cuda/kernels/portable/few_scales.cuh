// Weight scales for the units of few_codes.cuh.
#include "signs.cuh"

// Returns the first block of 128 columns of this warp's unit i.
__device__ inline u32 unit_block(int i) { return 2 * (i * WARPS + threadIdx.x / 32); }

// Returns the scale of row n for column k, 0 past the end.
__device__ inline float weight_scale(const float* wscale, u32 n, u32 k, u32 width) {
    return k < width ? wscale[(size_t)n * ((width + BLOCK - 1) / BLOCK) + k / BLOCK] * SIGN : 0.0f;
}
