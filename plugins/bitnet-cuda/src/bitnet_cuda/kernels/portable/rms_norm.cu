// y[l] = x[index[l]] / sqrt(mean(x^2) + eps) * gamma; one block per row of width columns.
#include "prelude.cuh"

KERNEL rms_norm(const float* x, const int* index, const float* gamma, float* y, u32 rows, u32 width, float eps) {
    __shared__ float scratch[GROUP / 32];
    let_next_start();
    wait_for_previous();
    u32 row = blockIdx.x;
    const float* in = x + (size_t)index[row] * width;
    float squares = 0.0f;
    for (u32 k = threadIdx.x; k < width; k += GROUP) squares += in[k] * in[k];
    squares = group_sum(squares, scratch);
    float inverse = not_finite(squares) ? quiet_nan() : 1.0f / sqrtf(squares / (float)width + eps);
    for (u32 k = threadIdx.x; k < width; k += GROUP) y[(size_t)row * width + k] = in[k] * inverse * gamma[k];
}
