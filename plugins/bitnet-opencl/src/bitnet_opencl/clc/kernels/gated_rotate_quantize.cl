// y = gated_rms_norm of x, gate and gamma (gated_rms_norm.cl); then H(signs * y) for each `block` columns, quantized
// (rotate_quantize.clh). x, gate f32[rows, n_heads, head_dim]; gamma f32[head_dim]; signs f32[n_heads * head_dim]; q
// i8, scale f32, qsum i32 as in glu_rotate_quantize.cl.
// Group: a block of a row, at most ROOM columns, which are whole heads if NORM is 1.
#include "rotate_quantize.clh"
KERNEL gated_rotate_quantize(ARGUMENTS) {
    PARAMETERS
    AT_IN(float4, x);
    AT_IN(float4, gate);
    AT_IN(float4, gamma);
    AT_IN(float4, signs);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
    __local float4 v[ROOM / 4];
    __local uint most[ROOM / 4];
    __local int sums[ROOM / 4];
    const uint lid = get_local_id(0), first = get_group_id(0) * block, per_group = n_heads / groups, words = head_dim / 4;
    const ulong row = (ulong)get_group_id(1) * n_heads * head_dim, at = row + first;
// Returns columns first + 4 i .. first + 4 i + 3 of y.
#define SOURCE(i)                                                              \
    const uint column = first + 4 * (i), to = column / head_dim;               \
    const ulong from = (row + (to % per_group * groups + to / per_group) * head_dim + column % head_dim) / 4
    // Loaded before the group synchronizes, as no cache has gamma.
    const uint own = min(lid, block / 4 - 1);
    SOURCE(own);
    const float4 own_gate = gate[from], own_gamma = NORM ? gamma[column % head_dim / 4] : (float4)1.0f, own_signs = signs[first / 4 + own];
#if NORM
    for (uint i = lid; i < block / 4; i += GROUP) {
        SOURCE(i);
        const float4 z = x[from], squares = z * z;
        most[i] = as_uint(squares.x + squares.y + (squares.z + squares.w));
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lid; i < block / 4; i += GROUP) {
        SOURCE(i);
        const float4 a = i == own ? own_gate : gate[from];
        float4 z = x[from];
#if NORM
        float sum = 0;
        for (uint j = i / words * words; j < i / words * words + words; ++j) sum += as_float(most[j]);
        const float mean = sum / (float)head_dim;
        z = z * (isfinite(mean) ? 1.0f / sqrt(mean + eps) : NAN) * (i == own ? own_gamma : gamma[column % head_dim / 4]);
#endif
        z *= (ACT == 1 ? a : (float4)1.0f) / (1.0f + exp(-a));
        v[i] = z * (i == own ? own_signs : signs[first / 4 + i]);
    }
    rotate_quantize(v, most, sums, block, q + at, scale + at / 32, qsum + at / 32);
}
