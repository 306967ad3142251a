// y[t] = H(signs * x[t]) or, with INVERSE 1, signs * H(x[t]), with H over each HADAMARD columns (hadamard.cuh). A block
// computes one transform of a row.
#include "prelude.cuh"
#include "hadamard.cuh"

KERNEL hadamard_rotate(const float* x, const float* signs, float* y, u32 rows, u32 width, u32 block) {
    __shared__ Floats exchange[HADAMARD_WARPS * 32];
    u32 first = blockIdx.x * HADAMARD, k = 4 * threadIdx.x;
    size_t row = (size_t)blockIdx.y * width + first;
    float v[4], sign[4];
    let_next_start();
#pragma unroll
    for (u32 i = 0; i < 4; i++) sign[i] = k + i < HADAMARD ? signs[first + k + i] : 0.0f;
    wait_for_previous();
#pragma unroll
    for (u32 i = 0; i < 4; i++) v[i] = k + i < HADAMARD ? x[row + k + i] * (INVERSE ? 1.0f : sign[i]) : 0.0f;
    hadamard(v, exchange);
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (k + i < HADAMARD) y[row + k + i] = INVERSE ? v[i] * sign[i] : v[i];
}
