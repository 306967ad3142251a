// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * gamma (NORM 1) or x[t] (NORM 0), stored if KEEP is 1; then H(signs * y) for
// each `block` columns, quantized (rotate_quantize.clh). x, y f32[rows, width]; gamma, signs f32[width]; q i8[rows,
// width]; scale f32, qsum i32 [rows, width / 32].
// Group: TILE_N blocks of a row, each at most ROOM columns; every group sums the squares of the whole row.
#include "rotate_quantize.clh"
KERNEL norm_rotate_quantize(ARGUMENTS) {
    PARAMETERS
    AT_IN(float4, x);
    AT_IN(float4, gamma);
    AT_IN(float4, signs);
    AT_OUT(float4, y);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
    __local float4 v[ROOM / 4];
    __local float scratch[GROUP];
    __local uint most[ROOM / 4];
    __local int sums[ROOM / 4];
    const uint lid = get_local_id(0), begin = get_group_id(0) * TILE_N * block, end = min(begin + TILE_N * block, width);
    const ulong row = (ulong)get_group_id(1) * width;
    // Loaded before the group synchronizes, as no cache has gamma.
    const uint own = begin / 4 + min(lid, block / 4 - 1);
    const float4 own_gamma = NORM ? gamma[own] : (float4)1.0f, own_signs = signs[own];
    float inverse = 1;
#if NORM
    float4 squares = 0;
    for (uint from = lid; from < width / 4; from += 8 * GROUP) {
        UNROLL
        for (uint j = 0; j < 8; ++j) {
            const uint i = from + j * GROUP;
            const float4 z = i < width / 4 ? x[row / 4 + i] : (float4)0.0f;
            squares = fma(z, z, squares);
        }
    }
    const float mean = group_sum(squares.x + squares.y + (squares.z + squares.w), scratch) / (float)width;
    inverse = isfinite(mean) ? 1.0f / sqrt(mean + eps) : NAN;
#endif
    for (uint first = begin; first < end; first += block) {
        for (uint i = lid; i < block / 4; i += GROUP) {
            const uint at = first / 4 + i;
            float4 z = x[row / 4 + at];
            if (NORM) z = z * inverse * (at == own ? own_gamma : gamma[at]);
            if (KEEP) y[row / 4 + at] = z;
            v[i] = z * (at == own ? own_signs : signs[at]);
        }
        const ulong at = row + first;
        rotate_quantize(v, most, sums, block, q + at, scale + at / 32, qsum + at / 32);
    }
}
