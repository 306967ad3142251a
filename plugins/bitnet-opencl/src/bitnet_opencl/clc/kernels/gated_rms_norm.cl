// y[t, h'] = n(x[t, h]) * act(gate[t, h]) for each head h, with n(a) = a / sqrt(mean(a^2) + eps) * gamma (NORM 1) or a
// (NORM 0), act(a) = a / (1 + exp(-a)) (ACT 1) or 1 / (1 + exp(-a)) (ACT 2), and h' = h % groups * (n_heads / groups) +
// h / groups. NaN if the sum of squares is not finite.
// x, gate, y f32[rows, n_heads, head_dim]; gamma f32[head_dim]. Group: a head of a row.
KERNEL gated_rms_norm(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(float, gate);
    AT_IN(float, gamma);
    AT_OUT(float, y);
    __local float scratch[GROUP];
    const uint lid = get_local_id(0), head = get_group_id(0);
    const ulong row = (ulong)get_group_id(1) * n_heads, from = (row + head) * head_dim;
    const ulong to = (row + head % groups * (n_heads / groups) + head / groups) * head_dim;
#if NORM
    float sum = 0;
    for (uint i = lid; i < head_dim; i += GROUP) sum = fma(x[from + i], x[from + i], sum);
    const float mean = group_sum(sum, scratch) / (float)head_dim;
    const float inverse = isfinite(mean) ? 1.0f / sqrt(mean + eps) : NAN;
#define NORMED(i) x[from + (i)] * inverse * gamma[i]
#else
#define NORMED(i) x[from + (i)]
#endif
    for (uint i = lid; i < head_dim; i += GROUP) {
        const float a = gate[from + i];
        y[to + i] = NORMED(i) * ((ACT == 1 ? a : 1.0f) / (1.0f + exp(-a)));
    }
}
