// m = act(gate) * up in f32, act = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1);
// y = m / sqrt(mean(m^2) + eps) * gamma (NORM 1) or m (NORM 0), then int8 absmax per row (QUANTIZE_ROW).
// gate_up f32[rows, 2 * width]; gamma f32[width]; q i8[rows, stride]; scale f32[rows]; qsum i32[rows].
// One group per row.
#include "glu.clh"
#define VALUE(i) glu(row[i], row[width + (i)])
#define VALUE16(i) glu16(vload16(0, row + (i)), vload16(0, row + width + (i)))
GROUP __kernel void glu_norm_quantize(IN(float, gate_up), IN(float, gamma), OUT(char, q), OUT(float, scale),
                                      OUT(int, qsum), const uint rows, const uint width, const uint stride,
                                      const float eps) {
    AT_IN(float, gate_up);
    AT_IN(float, gamma);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
    __local float scratch[WG], scratch_max[WG];
    __local int scratch_int[WG];
    const uint t = get_group_id(0);
    __global const float *row = gate_up + (ulong)t * 2 * width;
    QUANTIZE_ROW
}
