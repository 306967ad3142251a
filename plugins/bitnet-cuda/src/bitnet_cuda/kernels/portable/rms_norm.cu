// y[l] = x[index[l]] / sqrt(mean(x[index[l]]^2) + eps) * gamma. One block per row of width columns; a thread holds EACH
// columns. index and gamma are loaded before the preceding kernels have finished.
#include "prelude.cuh"

KERNEL rms_norm(const float* x, const int* index, const float* gamma, float* y, u32 rows, u32 width, float eps) {
    __shared__ float scratch[GROUP / 32];
    u32 row = blockIdx.x;
    float v[EACH], weight[EACH], squares = 0.0f;
    let_next_start();
    const float* in = x + (size_t)index[row] * width;
#pragma unroll
    for (int i = 0; i < EACH; i++) weight[i] = gamma[min(threadIdx.x + i * GROUP, width - 1)];
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = in[min(threadIdx.x + i * GROUP, width - 1)];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (threadIdx.x + i * GROUP < width) squares += v[i] * v[i];
    squares = group_sum(squares, scratch);
    float inverse = not_finite(squares) ? quiet_nan() : 1.0f / sqrtf(squares / (float)width + eps);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (threadIdx.x + i * GROUP < width) y[(size_t)row * width + threadIdx.x + i * GROUP] = v[i] * inverse * weight[i];
}
