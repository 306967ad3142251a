// y = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then int8 absmax per row (see quantize_row).
// x f32[rows, width]; gamma f32[width]; q i8[rows, stride]; scale f32[rows]; qsum i32[rows]. One group per row.
#define VALUE(i) row[i]
#define VALUE16(i) vload16(0, row + (i))
GROUP __kernel void rms_norm_quantize(IN(float, x), IN(float, gamma), OUT(char, q), OUT(float, scale), OUT(int, qsum),
                                      const uint rows, const uint width, const uint stride, const float eps) {
    AT_IN(float, x);
    AT_IN(float, gamma);
    AT_OUT(char, q);
    AT_OUT(float, scale);
    AT_OUT(int, qsum);
    __local float scratch[WG], scratch_max[WG];
    __local int scratch_int[WG];
    const uint t = get_group_id(0);
    __global const float *row = x + (ulong)t * width;
    QUANTIZE_ROW
}
