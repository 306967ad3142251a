// y[t, h'] = n(x[t, h]) * act(gate[t, h]) for each head h, with n(a) = a / sqrt(mean(a^2) + eps) * gamma (NORM 1) or a
// (NORM 0), act(a) = a / (1 + exp(-a)) (ACT 1) or 1 / (1 + exp(-a)) (ACT 2), and h' = h % groups * (n_heads / groups) +
// h / groups. One threadgroup per head of a row. x, gate, y f32[rows, n_heads, head_dim]; gamma f32[head_dim].
#include "numbers.h"
#include "reduce.h"
kernel void gated_rms_norm(device const float *x [[buffer(0)]], device const float *gate [[buffer(1)]],
                           device const float *gamma [[buffer(2)]], device float *y [[buffer(3)]],
                           constant Params &p [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                           uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint room[32];
    uint row = group.y * p.n_heads, from = (row + group.x) * p.head_dim;
    uint to = (row + group.x % p.groups * (p.n_heads / p.groups) + group.x / p.groups) * p.head_dim;
    float mean = 0.0f;
    if (NORM == 1) {
        float sum = 0.0f;
        for (uint i = tid; i < p.head_dim; i += GROUP) sum += x[from + i] * x[from + i];
        mean = group_sum(sum, room, tid) / float(p.head_dim);
    }
    float factor = 1.0f / sqrt(mean + p.eps);
    for (uint i = tid; i < p.head_dim; i += GROUP) {
        float v = NORM == 1 ? or_nan(x[from + i] * factor * gamma[i], is_bad(mean)) : x[from + i], a = gate[from + i];
        y[to + i] = v * ((ACT == 1 ? a : 1.0f) / (1.0f + exp(-a)));
    }
}
