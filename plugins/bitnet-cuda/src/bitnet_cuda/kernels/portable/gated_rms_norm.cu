// y[t,h'] = n(x[t,h]) * act(gate[t,h]) (activation.cuh) for each head h, with n(x) = x / sqrt(mean(x^2) + eps) * gamma
// (NORM 1) or x (NORM 0) and h' = h % groups * (n_heads / groups) + h / groups. One block per head of a row.
#include "prelude.cuh"
#include "activation.cuh"

KERNEL gated_rms_norm(const float* x, const float* gate, const float* gamma, float* y, u32 rows, u32 n_heads, u32 head_dim,
                      u32 groups, float eps) {
    __shared__ float scratch[GROUP / 32];
    let_next_start();
    wait_for_previous();
    u32 head = blockIdx.x, to = head % groups * (n_heads / groups) + head / groups;
    size_t row = (size_t)blockIdx.y * n_heads, from = (row + head) * head_dim;
    float inverse = 1.0f;
    if (NORM) {
        float squares = 0.0f;
        for (u32 i = threadIdx.x; i < head_dim; i += GROUP) squares += x[from + i] * x[from + i];
        squares = group_sum(squares, scratch);
        inverse = not_finite(squares) ? quiet_nan() : 1.0f / sqrtf(squares / (float)head_dim + eps);
    }
    for (u32 i = threadIdx.x; i < head_dim; i += GROUP) {
        float v = NORM ? x[from + i] * inverse * gamma[i] : x[from + i];
        y[(row + to) * head_dim + i] = v * activation(gate[from + i]);
    }
}
