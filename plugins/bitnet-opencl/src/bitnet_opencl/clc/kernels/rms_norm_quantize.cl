// y = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then int8 absmax codes (quantize_row.clh). x f32[rows,
// width]; gamma f32[width]; q i8[rows, stride]; scale f32, qsum i32 [rows], or [rows, stride / 32] if ABLOCK is not 0.
// One group per row.
#define VALUE(i) row[i]
#define VALUE16(i) vload16(0, row + (i))
KERNEL rms_norm_quantize(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(float, gamma);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
    const uint t = get_group_id(0);
    __global const float *row = x + (ulong)t * width;
#include "quantize_row.clh"
}
