// H z of `block` columns, four neighbouring ones for each of block / 4 threads; then int8 codes: a = max(max|y|, 1e-20)
// over ABLOCK columns, q = rint(y * (127 / a)), and for each 32 columns scale = a / 127 and qsum = sum q. ABLOCK
// columns with a value that is not finite get scale NaN and codes 0.
#include "numbers.h"
#include "hadamard.h"
#include "four_columns.h"

// z: multiplied by the signs. q, scale, qsum: those of the first column.
inline void rotate_quantize(threadgroup float *v, float4 z, uint block, device char4 *q, device float *scale, device int *qsum,
                            uint tid) {
    for (uint i = 0; i < 4; i++) v[4 * tid + i] = z[i];
    hadamard(v, block, tid);
    z = float4(v[4 * tid], v[4 * tid + 1], v[4 * tid + 2], v[4 * tid + 3]) * (1.0f / sqrt(float(block)));
    uint4 bits = uint4(size_bits(z.x), size_bits(z.y), size_bits(z.z), size_bits(z.w));
    uint most = block_max(max(max(bits.x, bits.y), max(bits.z, bits.w)));
    bool bad = most >= 0x7f800000u;
    float a = max(as_type<float>(most), 1e-20f);
    char4 codes = char4(0);
    if (!bad) codes = codes_of(z, 127.0f / a);
    q[tid] = codes;
    int sum = sum_of_32(sum_of(codes));
    if (tid % 8 != 0) return;
    scale[tid / 8] = or_nan(a / 127.0f, bad);
    qsum[tid / 8] = sum;
}
