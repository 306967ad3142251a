// m = act(gate) * up in f32, act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1); y = m / sqrt(mean(m^2) + eps) *
// gamma (NORM 1) or m (NORM 0), then int8 absmax codes (quantize_row.clh). gate_up f32[rows, 2 * width]; gamma
// f32[width]; q i8[rows, stride]; scale f32, qsum i32 [rows], or [rows, stride / 32] if ABLOCK is not 0. One group per
// row.
#include "glu.clh"
#define VALUE(i) gated(row[i], row[width + (i)])
#define VALUE16(i) gated16(vload16(0, row + (i)), vload16(0, row + width + (i)))
KERNEL glu_norm_quantize(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, gate_up);
    AT_IN(float, gamma);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
    const uint t = get_group_id(0);
    __global const float *row = gate_up + (ulong)t * 2 * width;
#include "quantize_row.clh"
}
